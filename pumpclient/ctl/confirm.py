"""Confirmation of irreversible commands: typed at a terminal, or -yes in a script."""

from __future__ import annotations

import asyncio
import sys

from pumpclient.ctl.errors import Refused
from pumpclient.ctl.options import Options


async def confirm(options: Options, *, refusal: str, about: str, word: str) -> None:
    """Refused unless -yes is given or `word` is typed: with `refusal` where there is no terminal to type at.

    `about`: what the person reads first.
    """
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise Refused(refusal)
    sys.stderr.write(f"{about}This cannot be undone. Type {word} to go on: ")
    sys.stderr.flush()
    typed = await asyncio.to_thread(sys.stdin.readline)
    if typed.strip() != word:
        raise Refused("not confirmed, nothing was done")
