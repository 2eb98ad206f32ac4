"""Step 5 · keeping.

Takes in plans, items and records; settles each in one transaction, or raises and changes nothing. ``contract.py`` says
what a store promises, ``memory/`` shows it in plain Python, ``sql/`` keeps it in SQLite and Postgres.
"""
