"""Run all measurements, one after another, except `bench.size`, which takes minutes and a gigabyte of disk."""

from __future__ import annotations

import subprocess
import sys

for name in (
    "rowcodec",
    "columns",
    "protocol",
    "avro",
    "files",
    "pump",
    "latency",
    "planner",
    "load",
    "drainer",
    "kafka",
    "large",
):
    done = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
