"""A stub pump in a process of its own: `<address> <go|ours>`; prints host:port, then a fake binlog every 0.2 s."""

from __future__ import annotations

import sys
import time

from binlog.envelope import encode_binlog, encode_fake

from tests.support.stub_pump import StubPump

BASE = 470_000_000_000_000_000


def main(address: str, kind: str) -> None:
    pump = StubPump(extension=kind == "ours", address=address)
    pump.put(encode_binlog(tp=1, start_ts=BASE + 1, commit_ts=BASE + 2, prewrite_key=b"k"))
    sys.stdout.write(f"{pump.host}\n")
    sys.stdout.flush()
    ts = BASE + 10
    while True:
        pump.put(encode_fake(ts))
        pump.resolve(ts)
        ts += 1
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
