"""The index beside a writer: a flush is one although others write at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

from pump.index import Index


def test_a_flush_while_others_write(tmp_path: Path) -> None:
    """LevelDB may take a flush and a write that is under way for one group, and then begins no new log."""
    index = Index(tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def hammer() -> None:
        try:
            while not stop.is_set():
                _, raw = index.batch()
                for number in range(200):
                    raw.put(b"x%d" % number, b"v" * 100)
                index.write(raw)
        except BaseException as error:  # noqa: BLE001  told by the test
            failures.append(error)

    writers = [threading.Thread(target=hammer) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(1, 31):
            index.flush(number)
            assert index.check() == number
    finally:
        stop.set()
        for writer in writers:
            writer.join()
        index.close()
    assert not failures
