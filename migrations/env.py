"""How alembic reaches the database: on the connection that lash hands it, or, for developers, by ``-x url=…``."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection

from lash.errors import UnsupportedUrl
from lash.store.migrate import VERSION_TABLE
from lash.store.opening import migrating, parse_url
from lash.store.schema import metadata


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, version_table=VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()


async def run_by_url(url: str) -> None:
    async with migrating(parse_url(url), create=True) as transact:
        await transact(run)


def main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run(connection)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise UnsupportedUrl("say which database: alembic -x url=sqlite:///some.db …")
    asyncio.run(run_by_url(url))


main()
