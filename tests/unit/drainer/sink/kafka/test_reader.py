"""Where a partition ends, told by a consumer whose answers are made here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drainer.sink.errors import DestinationDown
from drainer.sink.kafka.reader import Reader
from drainer.sink.retry import RetryDeadline


class Ends:
    """A consumer that is asked for ends alone; its answers, one after another."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = list(answers)

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, self.answers.pop(0)

    def close(self) -> None:
        pass


def reader(monkeypatch: pytest.MonkeyPatch, *, written: Sequence[int], stable: Sequence[int]) -> Reader:
    monkeypatch.setattr(Reader, "_made", lambda self, *, committed: Ends(stable if committed else written))
    return Reader({"bootstrap.servers": "k1:9092"}, "control")


def test_settled_end_is_behind_commit_marker_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker acknowledges a commit before its marker is there. Where the end without it was told, an executor would
    take the marker for something that another drainer wrote, and read the whole control topic for every slot."""
    found = reader(monkeypatch, written=[6, 7], stable=[7, 7])
    assert found.settled_end(0, RetryDeadline("ends", 0.0)) == 7


def test_settled_end_waits_for_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader(monkeypatch, written=[6, 7], stable=[5, 7])
    assert found.settled_end(0, RetryDeadline("ends", 60.0)) == 7


def test_open_transaction_that_nobody_ends_named_with_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader(monkeypatch, written=[6], stable=[5])
    command = "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic control --partition 0 --start-offset 5"
    with pytest.raises(DestinationDown, match=f"a transaction is open at offset 5 of control-0.*{command}"):
        found.settled_end(0, RetryDeadline("ends", 0.0))
