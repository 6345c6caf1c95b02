"""A query that is stopped before it runs."""

from __future__ import annotations

import threading
from typing import Any

from drainer.spark.query import Query


def test_a_query_that_was_not_started_can_be_stopped() -> None:
    """A drainer that is told to stop just when a query begins again."""
    query = Query(None, options={})
    query.stop()


class Begins:
    """A session whose queries begin only when the test says so. Every attribute and call of building one is itself."""

    def __init__(self) -> None:
        self.beginning, self.go_on, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def __getattr__(self, _name: str) -> Begins:
        return self

    def __call__(self, *_args: object, **_options: object) -> Begins:
        return self

    def start(self) -> Begins:
        self.beginning.set()
        assert self.go_on.wait(60)
        return self

    def stop(self) -> None:
        self.stopped.set()

    def awaitTermination(self) -> None:
        assert self.stopped.wait(60)


def test_a_query_that_is_stopped_while_it_starts_ends() -> None:
    """Its first batch may fail before Spark has told that it runs, and no other batch would end it."""
    session: Any = Begins()
    query = Query(session, options={})
    ended = threading.Event()
    starting = threading.Thread(target=query.start, args=(lambda _: None, lambda _: ended.set()))
    starting.start()
    assert session.beginning.wait(60)
    query.stop()
    session.go_on.set()
    assert session.stopped.wait(60)
    assert ended.wait(60)
    starting.join(60)
