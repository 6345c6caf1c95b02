"""Decode rows to Arrow columns, compute from these the last state of each key, and divide these among slots."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """A batch makes hundreds of thousands of tuples and no cycle; looking for cycles costs a sixth of the time that
    folding takes, and half of the time that making questions takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
