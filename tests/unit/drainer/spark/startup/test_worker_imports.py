"""What processes are forked with that carry out tasks."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

PROGRAM = """
import gc, json
from drainer.spark.startup import worker_imports
worker_imports.load()

class Cycle:
    seen = 0
    def __init__(self):
        self.itself = self
    def __del__(self):
        Cycle.seen += 1

kept = [(number, []) for number in range(20_000)]  # what a task makes of its rows
young = gc.get_stats()[0]["collections"]
cycles = [Cycle() for _ in range(10)]
del cycles
rows = [(number, []) for number in range(20_000)]
looked = gc.get_stats()[0]["collections"] - young
gc.collect()


import os
import pyarrow as pa

def allocated():
    # The name of the allocator, and whether a computed column has its memory from glibc.
    before = pa.system_memory_pool().bytes_allocated()
    column = pa.array(range(10_000)).take(pa.array([*range(9_999, -1, -1)]))
    grown = pa.system_memory_pool().bytes_allocated() - before >= column.nbytes
    return pa.default_memory_pool().backend_name, grown

found, written = os.pipe()
if not os.fork():  # as a worker: the environment is that of Spark's request
    os.environ.clear()
    os.write(written, json.dumps(allocated()).encode())
    os._exit(0)
os.close(written)
of_worker = json.loads(os.read(found, 4096))
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 10_000, looked, Cycle.seen, of_worker]))
"""
ALLOCATOR = """
from drainer.spark.startup import worker_imports
worker_imports._keep_memory()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


def test_garbage_is_looked_for_seldom_and_not_among_what_was_imported() -> None:
    is_enabled, is_frozen, looked, cycles, _ = _loaded()
    assert (is_enabled, is_frozen, looked, cycles) == (True, True, 0, 10)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_arrow_allocates_from_glibc_in_a_forked_worker() -> None:
    assert _loaded()[-1] == ["system", True]


def test_the_users_choice_of_arrows_allocator_is_kept() -> None:
    variables = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}
    assert _ran(ALLOCATOR, variables).split() == ["mimalloc"]


@functools.cache
def _loaded() -> list[Any]:
    """What a process with everything imported reports, and a child that it forks. Started once for all tests."""
    variables = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    found: list[Any] = json.loads(_ran(PROGRAM, variables).splitlines()[-1])
    return found


def _ran(program: str, variables: Mapping[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300, env=variables
    ).stdout
