"""Measurements. Each prints a ratio to a ceiling or a peer taken in the same run; none is a test.

    python -m bench.drainer    backlog to MariaDB: rows/s against a plain loader, and the Go drainer where it is given
    python -m bench.latency    commit to visible, two idle pumps
    python -m bench.pump       binlogs/s into one pump against raw appends, and the Go pump where it is given
    python -m bench.client     transactions of one pump client, and its CPU
    python -m bench.planner    planning by number of pumps, batches by number of tasks, the destination by connections
    python -m bench.rowcodec   one row from binlog bytes to SQL text

The binaries of the original are in the folder that PEER_BIN names: pd-server, unitikv, tidb-server, pump, drainer,
pumpload.
"""
