"""What a command says: answers on stdout, errors on stderr, in words or as JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

from lash.cli.exits import exit_code
from lash.errors import LashError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]


def _console(*, stderr: bool = False) -> Console:
    """Text goes out as it is: no markup in what users named, no lines broken for a pipe."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Screen:
    """One command's voice. The command line fills in how it is to speak before the command begins."""

    as_json: bool = False
    with_traceback: bool = False
    out: Console = field(default_factory=_console)
    err: Console = field(default_factory=lambda: _console(stderr=True))

    def answer(self, words: str, facts: Mapping[str, str | int | None]) -> None:
        self.out.print(json.dumps(facts) if self.as_json else words)

    def fail(self, error: Exception) -> int:
        """Tell what went wrong; the answer is the exit code."""
        status = exit_code(error)
        code, message = _told(error)
        if self.with_traceback:
            self.err.print("".join(traceback.format_exception(error)).rstrip())
        if self.as_json:
            self.err.print(json.dumps({"error": code, "message": message, "exit": status}))
        else:
            self.err.print(f"lash: {message}\n({code}, exit code {status})")
        return status


def screen_of(context: typer.Context, *, as_json: bool) -> Screen:
    screen: Screen = context.obj
    screen.as_json = as_json
    return screen


def _told(error: Exception) -> tuple[str, str]:
    if isinstance(error, LashError):
        return error.code, str(error)
    return "bug", f"a bug in lash: {type(error).__name__}: {error}; repeat it with 'lash --traceback …' and report it"
