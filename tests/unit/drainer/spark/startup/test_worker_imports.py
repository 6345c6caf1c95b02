"""What processes are forked with that carry out tasks."""

from __future__ import annotations

import json
import subprocess
import sys

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
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 10_000, looked, Cycle.seen]))
"""


def test_imported_modules_are_frozen_and_garbage_collection_is_rare() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(run.stdout.splitlines()[-1]) == [True, True, 0, 10]
