"""Proof by crash: real processes that write, and are really killed, stopped, or lied to about the time.

A *worker* is a process of its own that runs a random workload through the public store. It says on a pipe what it is
about to ask for, and, only after the store has answered, what it was told. The *parent* keeps that list. It is the
judge: after a crash it reads the tables with SQL of its own, and compares.

``databases``  a SQLite file, a Postgres database: their rows as they are, and their clocks
``calls``      what a worker says about one call, and the list of all of them
``worker``     the process; ``hands`` is what it does, ``telling`` how it says so, ``traps`` how it dies at a point
``processes``  the same process, as the parent sees it
``judge``      what must hold after a crash; ``rounds`` one whole story, from the start of some workers to the verdict
``writes``     one small example of every kind of write, for the tables of what holds after each point
``soak``       the stories, at random, for as long as you like: ``make soak``
"""
