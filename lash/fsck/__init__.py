"""fsck: is what a database holds what lash promises?

The oracle of the crash tests. It is written against the tables and the promises, and shares no code with the store: it
reads by plain SQL and has its own decoding, hashes and laws, so that a bug in the runtime cannot hide itself.

It reads one snapshot, changes nothing, and goes through each table once in the order of its key, so that its memory
does not grow with the database:

``sweep``     goes from session to session and pulls that session's rows out of every table
``history``   commits, branches, nodes, the head
``hashes``    the content hash of each commit, as far as its rows are still there
``work``      turns, items, journal, lease, ``ready_at``
``holdings``  documents, usage, state parts, debts, blobs, waits, the rows that describe the database
``bodies``, ``decoding``, ``tables``   what a row, a record and a payload look like
``reading``   pages and look-ups
``report``, ``codes``                  what is found, and what it means
"""

from lash.fsck.checking import check_database
from lash.fsck.codes import CODES, Code, Severity
from lash.fsck.report import Finding, Report

__all__ = ["CODES", "Code", "Finding", "Report", "Severity", "check_database"]
