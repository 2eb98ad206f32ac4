"""The command ``lash``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lash.cli import db
from lash.cli.fsck import fsck
from lash.cli.screen import AsJson, Screen, screen_of
from lash.version import VERSION

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="A durable agent runtime: sessions that survive crashes."
)
app.add_typer(db.app, name="db")
app.command()(fsck)


def print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        version(context)
        raise typer.Exit


@app.callback()
def settings(
    context: typer.Context,
    with_version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version of lash.")
    ] = False,
    with_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error arose, too.")
    ] = False,
) -> None:
    screen: Screen = context.obj
    screen.with_traceback = with_traceback


@app.command()
def version(context: typer.Context, as_json: AsJson = False) -> None:
    """Print the version of lash."""
    screen_of(context, as_json=as_json).answer(f"lash {VERSION}", {"version": VERSION})


def run() -> None:
    """The entry point: errors become one line and an exit code (lash/cli/exits.py), never a traceback by default."""
    screen = Screen()
    try:
        app(obj=screen)
    except Exception as error:
        sys.exit(screen.fail(error))
