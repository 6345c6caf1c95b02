"""Confirmation of irreversible commands: typed at a terminal, or -yes in a script."""

from __future__ import annotations

import asyncio
import sys

from pumpclient.ctl.errors import Refused
from pumpclient.ctl.options import Options


async def confirm(options: Options, *, refusal: str, about: str, word: str) -> None:
    """Return if -yes is given or the operator types `word`; raise Refused otherwise.

    `refusal`: the error if there is no terminal to type at. `about`: the text shown before the question.
    """
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise Refused(refusal)
    sys.stderr.write(f"{about}This cannot be undone. Type {word} to continue: ")
    sys.stderr.flush()
    typed = await asyncio.to_thread(sys.stdin.readline)
    if typed.strip() != word:
        raise Refused("not confirmed, nothing was done")
