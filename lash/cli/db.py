"""``lash db``: look at a database, bring it to the newest revision, make a copy of it.

The store is imported by the commands that need it: that takes a while, and ``lash --help`` can do without.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lash.cli.screen import AsJson, screen_of
from lash.errors import DatabaseMissing
from lash.version import VERSION

DEFAULT_URL = "sqlite:///lash.db"
Url = Annotated[str, typer.Option("--url", envvar="LASH_URL", help="sqlite:///FILE or postgresql://USER@HOST/NAME")]

app = typer.Typer(no_args_is_help=True, help="Look at a database, upgrade it, or back it up.")


@dataclass(frozen=True, slots=True)
class State:
    """A database's revision and the oldest lash that may run on it; both None when it has no tables of lash."""

    revision: str | None = None
    oldest_runtime: str | None = None


@app.command()
def upgrade(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Bring a database to the newest revision that this lash knows. A SQLite file is created where there is none."""
    screen = screen_of(context, as_json=as_json)
    where = shown(url)
    before, after = asyncio.run(upgraded(url))
    if before == after:
        words = f"{where} is at revision {after} already"
    else:
        words = f"{where} is at revision {after} now; it was {'empty' if before is None else f'at {before}'}"
    screen.answer(words, {"url": where, "before": before, "revision": after})


@app.command()
def current(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Print a database's revision, the newest one that this lash knows, and the oldest lash that may run on it."""
    from lash.store import migrate

    screen = screen_of(context, as_json=as_json)
    where, newest = shown(url), migrate.head()
    state = asyncio.run(looked_at(url))
    words = (
        f"database        {where}\n"
        f"revision        {state.revision or 'none: it has no tables of lash'}\n"
        f"newest known    {newest}\n"
        f"oldest runtime  {state.oldest_runtime or 'any'}"
    )
    facts = {"url": where, "revision": state.revision, "newest": newest, "oldest_runtime": state.oldest_runtime}
    screen.answer(words, facts)


@app.command()
def check(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Say whether this lash may run on a database. It may not: exit code 7, and what to do about it."""
    screen = screen_of(context, as_json=as_json)
    where = shown(url)
    revision = asyncio.run(checked(url))
    words = f"lash {VERSION} may run on {where}, which is at revision {revision}"
    screen.answer(words, {"url": where, "ok": True, "runtime": VERSION, "revision": revision})


@app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where the copy goes. Its folder must be there.")],
    url: Url = DEFAULT_URL,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite database to a file while others use it. The copy is whole, or there is none."""
    from lash.store.backup import back_up
    from lash.store.opening import parse_url

    screen = screen_of(context, as_json=as_json)
    where = shown(url)
    made = back_up(parse_url(url), file, overwrite=overwrite)
    words = (
        f"{where} is backed up to {made.path}\n"
        f"size      {made.size:,} bytes\n"
        f"revision  {made.revision}\n"
        f"sessions  {made.sessions:,}\n"
        f"To check it: lash fsck sqlite:///{made.path}"
    )
    counts = {"size": made.size, "sessions": made.sessions}
    screen.answer(words, {"url": where, "file": str(made.path), "revision": made.revision, **counts})


def shown(url: str) -> str:
    """A URL as it may be printed: without its password, and without settings, which may hold another."""
    from lash.store.opening import parse_url

    return parse_url(url).set(query={}).render_as_string(hide_password=True)


async def upgraded(url: str) -> tuple[str | None, str]:
    """The revision before and after. A database that is newer than this lash stays as it is, if the two get along."""
    from lash.store import migrate
    from lash.store.opening import migrating, parse_url

    async with migrating(parse_url(url), create=True) as transact:
        before = await transact(migrate.revision)
        await transact(migrate.upgrade)
        return before, await transact(migrate.check)


async def looked_at(url: str) -> State:
    from lash.store import migrate
    from lash.store.opening import migrating, parse_url

    parsed = parse_url(url)
    try:
        async with migrating(parsed) as transact:
            revision = await transact(migrate.revision)
            if revision is None:
                return State()
            return State(revision, await transact(lambda connection: migrate.meta(connection, "oldest_runtime")))
    except DatabaseMissing:
        if parsed.get_backend_name() != "sqlite":  # a server without that database is a mistake; a file comes by itself
            raise
        return State()


async def checked(url: str) -> str:
    from lash.store import migrate
    from lash.store.opening import migrating, parse_url

    async with migrating(parse_url(url)) as transact:
        return await transact(migrate.check)
