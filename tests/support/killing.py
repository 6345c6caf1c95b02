"""Ends a process's work at its n-th crash point, within the process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from unittest import mock


class Killed(BaseException):
    """As SIGKILL does, it ends the process where it is."""


@contextlib.contextmanager
def killed_at(nth: int, *modules: str) -> Iterator[None]:
    """Leave the block at the n-th crash point that is passed in these modules; its end is not reached then."""
    passed = itertools.count(1)

    def point(_: str) -> None:
        if next(passed) == nth:
            raise Killed

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Killed))
        for module in modules:
            stack.enter_context(mock.patch(f"{module}.crash_point", point))
        yield
