"""A query that is stopped before it runs."""

from __future__ import annotations

from drainer.spark.query import Query


def test_a_query_that_was_not_started_can_be_stopped() -> None:
    """A drainer that is told to stop just when a query begins again."""
    query = Query(None, options={})
    query.stop()
