"""What a database itself says about its tables: the evidence that migrations and code are compared by."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import asyncpg

from lash.store.migrate import VERSION_TABLE

Catalog = dict[str, list[tuple[Any, ...]]]

POSTGRES = {
    "tables": """
        SELECT relname::text, relkind::text, relpersistence::text, reloptions::text, relrowsecurity
        FROM pg_class WHERE relnamespace = 'public'::regnamespace""",
    "columns": """
        SELECT c.relname::text, a.attnum, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, a.attgenerated::text, a.attcollation
        FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'v', 'm')
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped""",
    "constraints": """
        SELECT conrelid::regclass::text, conname::text, contype::text, pg_get_constraintdef(oid), condeferrable,
               convalidated
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": """
        SELECT indrelid::regclass::text, pg_get_indexdef(indexrelid), indisunique, indisvalid
        FROM pg_index WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)""",
    "functions": """
        SELECT proname::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace""",
    "triggers": """
        SELECT tgname::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal""",
    "sequences": """
        SELECT sequencename::text, data_type::text, start_value, min_value, max_value, increment_by, cycle
        FROM pg_sequences WHERE schemaname = 'public'""",
}


def differences(one: Catalog, other: Catalog) -> list[str]:
    """What only one of two databases has, kind by kind."""
    return [
        f"{side} {kind}: {row}"
        for kind in sorted(one.keys() | other.keys())
        for side, mine, theirs in (("first", one, other), ("second", other, one))
        for row in mine.get(kind, [])
        if row not in theirs.get(kind, [])
    ]


async def postgres_catalog(connection: asyncpg.Connection) -> Catalog:
    found = {kind: [tuple(row) for row in await connection.fetch(query)] for kind, query in POSTGRES.items()}
    return {kind: sorted((row for row in rows if not _of_alembic(row)), key=repr) for kind, rows in found.items()}


def sqlite_catalog(connection: sqlite3.Connection) -> Catalog:
    tables = [
        row for (row,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if "lash" in row
    ]
    found: Catalog = {
        "sql": [
            (kind, name, table, None if sql is None else normalised(sql))
            for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
        ]
    }
    for pragma in ("table_xinfo", "foreign_key_list", "index_list"):
        found[pragma] = [
            (table, *_without_numbers(pragma, row))
            for table in tables
            for row in connection.execute(f"PRAGMA {pragma}({table})")
        ]
    indexes = [row[2] for row in found["index_list"]]
    found["index_xinfo"] = [(i, *row) for i in indexes for row in connection.execute(f"PRAGMA index_xinfo({i})")]
    return {kind: sorted((row for row in rows if not _of_alembic(row)), key=repr) for kind, rows in found.items()}


def normalised(sql: str) -> str:
    """The statement with single spaces and the definitions of a table in alphabetical order.

    In which order a table's constraints are written means nothing; the order of its columns is in ``table_xinfo``.
    """
    text = re.sub(r"\s+", " ", sql).strip()
    created = re.fullmatch(r"CREATE TABLE (\S+) ?\((.*)\)", text)
    if created is None:
        return text
    return f"CREATE TABLE {created[1]} ({', '.join(sorted(_definitions(created[2])))})"


def _definitions(body: str) -> list[str]:
    """The parts between the commas that no parenthesis encloses."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(body):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(body[start:place].strip())
            start = place + 1
    return [*parts, body[start:].strip()]


def _without_numbers(pragma: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """SQLite numbers foreign keys and indexes in the order in which they were written; that means nothing."""
    return row if pragma == "table_xinfo" else (pragma, *row[1:])


def _of_alembic(row: tuple[Any, ...]) -> bool:
    """The table of revisions is alembic's own and in no code of ours."""
    return any(isinstance(value, str) and VERSION_TABLE in value for value in row)
