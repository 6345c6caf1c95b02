"""What each kind of vector of the protocols `dispatch` and `split` asks, against drainer.dispatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, Final

import numpy as np
import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.dispatch.dispatcher import Dispatcher
from drainer.dispatch.errors import DispatchConfigError, DispatchError
from drainer.dispatch.partition import hash_of, hash_text, row_hashes
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import DispatchRule, Router
from drainer.dispatch.topic import TopicExpression
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Table
from drainer.row.form import Form
from tests.support.row_changes import changes_of, make_changes, make_table

Input = Mapping[str, Any]

LONG: Final = FieldType(Tp.LONGLONG, flen=20, decimal=0)
TEXT: Final = FieldType(Tp.VARCHAR, flen=255, charset="utf8mb4", collate="utf8mb4_bin")


def router_of(given: Input) -> Router:
    rules = [
        DispatchRule(tuple(rule["matcher"]), partition=rule.get("partition", ""), topic=rule.get("topic", ""))
        for rule in given["rules"]
    ]
    return Router(rules, given["default_topic"])


def column_value_string(given: Input, expected: Input) -> None:
    """NULL and booleans have no carrier of their own here: NULL is tried as a row, a boolean is TINYINT(1)."""
    value = given["value"]
    if value is None:
        table = make_table("d", "t", [("c", LONG)])
        changes = make_changes(table, Kind.INSERT, new=[[None]])
        (found,) = row_hashes(table, [0], changes.image, 1, UTC).tolist()
        assert found == hash_of([[b"d", b"t"], [b"c", expected["string"].encode()]])
        return
    kind = FieldType(Tp.TINY, flen=1) if isinstance(value, bool) else FieldType(Tp.NEWDECIMAL, flen=10, decimal=2)
    carrier = int(value) if isinstance(value, bool) else value
    assert hash_text(Form.of(kind), UTC)(carrier).decode() == expected["string"]


def hash_(given: Input, expected: Input) -> None:
    assert hash_of([[part.encode() for part in group] for group in given["groups"]]) == expected["u32"]


def _row(given: Input) -> dict[str, object]:
    return dict(given.get("row") or {**given.get("handle_key_columns", {}), **given.get("other_columns", {})})


def _table(given: Input, row: Mapping[str, object]) -> Table:
    names = list(row) or ["id"]
    unique = [given["index_columns"]] if "index" in given else []
    table = make_table(
        given.get("schema", "test"),
        given.get("table", "t1"),
        [(name, FieldType(LONG.tp, Flag.NOT_NULL if unique else 0, LONG.flen, 0)) for name in names],
        primary=list(given.get("handle_key_columns", {})),
        unique=unique,
    )
    if unique:
        object.__setattr__(table.info.indexes[-1], "name", given["index"].lower())
    return table


def _partition(given: Input) -> int:
    row = _row(given)
    table = _table(given, row)
    rule = DispatchRule(
        ("*.*",), partition=given["rule"], index=given.get("index", ""), columns=tuple(given.get("columns", ()))
    )
    dispatcher = Dispatcher(Router([rule], "topic"), {"topic": given.get("partition_num", 1)}, UTC)
    image = list(row.values()) or [1]
    changes = make_changes(table, Kind.INSERT, new=[image], commit_ts=given.get("commit_ts", 5))  # type: ignore[list-item]
    (routes,) = dispatcher.routes([changes])
    (found,) = routes.partitions.tolist()
    return int(found)


def partition(given: Input, expected: Input) -> None:
    assert _partition(given) == expected["partition"]
    if "hash_groups" in given:
        groups = [[part.encode() for part in group] for group in given["hash_groups"]]
        assert hash_of(groups) == expected["hash_u32"]


def partition_error(given: Input, expected: Input) -> None:
    assert expected["error"] == "CDC:ErrDispatcherFailed"
    with pytest.raises(DispatchError, match=expected["message_contains"]):
        _partition({"row": {"col1": 1, "col2": 2}, **given})


def _topic_expression(given: Input, expected: Input, protocol: str) -> None:
    if not expected["valid"]:
        with pytest.raises(DispatchConfigError):
            TopicExpression.parse(given["expression"], protocol)
        return
    parsed = TopicExpression.parse(given["expression"], protocol)
    if "topic" in expected:
        assert parsed.topic(given["schema"], given["table"]) == expected["topic"]


def topic_expression(given: Input, expected: Input) -> None:
    _topic_expression(given, expected, "open-protocol")


def topic_expression_avro(given: Input, expected: Input) -> None:
    _topic_expression(given, expected, "avro")


def topics(given: Input, expected: Input) -> None:
    """The order is that of the first table that needs a topic; the default topic is there whether one does or not."""
    names = [tuple(name.split(".", 1)) for name in given["tables"]]
    found = router_of(given).topics((schema, table) for schema, table in names)
    assert found == expected["topics"]


def ddl_topic(given: Input, expected: Input) -> None:
    schema, table = given["pre_table"] or (given["schema"], given["table"])
    assert router_of(given).topic(schema, table) == expected["topic"]


def _columns(given: Input) -> Table:
    flags = {column["name"]: int(column["flag"]) for column in given["columns"]}
    kinds = [(name, FieldType(TEXT.tp, 0 if flag & 64 else Flag.NOT_NULL, 255, 0, "utf8mb4", "utf8mb4_bin"))
             for name, flag in flags.items()]  # fmt: skip
    primary = [name for name, flag in flags.items() if flag & 8]
    return make_table("d", "t", kinds, primary=primary, unique=[[name] for name, flag in flags.items() if flag & 16])


def split_update(given: Input, expected: Input) -> None:
    if "columns" not in given:  # an event without any image: there are no such changes here
        assert expected["events"] == []
        assert events_of_changes([]) == []
        return
    table = _columns(given)
    images = [[given[side][column.name].encode() for column in table.columns] for side in ("pre", "new")]
    changes = make_changes(table, Kind.UPDATE, old=[images[0]], new=[images[1]])
    assert events_of_changes([changes]) == expected["events"]


def sort_txn(given: Input, expected: Input) -> None:
    """Each event is of a row of its own."""
    table = make_table("d", "t", [("id", LONG), ("v", LONG)], primary=["id"])
    made = []
    for number, name in enumerate(given["events"]):
        kind = Kind[name.upper()]
        old = None if kind is Kind.INSERT else [[number, 0]]
        new = None if kind is Kind.DELETE else [[number, 1]]
        made.append(replaced_order(make_changes(table, kind, old=old, new=new), number))
    assert events_of_changes(made) == expected["events"]


def replaced_order(changes: RowChanges, order: int) -> RowChanges:
    return RowChanges(
        changes.table, changes.kind, changes.commit_ts, changes.start_ts, np.array([order]), changes.old, changes.new
    )


def events_of_changes(changes: list[RowChanges]) -> list[str]:
    """What drainer.dispatch.row_events makes of changes that were read so; the kinds in order."""
    found = RowEvents().of_changes([changes_of(one) for one in changes])
    places = [(place, one.kind.name.lower()) for one in found for place in one.order.tolist()]
    return [name for _, name in sorted(places)]


_CHECKS: Final[Mapping[tuple[str, str], Callable[[Input, Input], None]]] = {
    ("dispatch", "column_value_string"): column_value_string,
    ("dispatch", "hash"): hash_,
    ("dispatch", "partition"): partition,
    ("dispatch", "partition_error"): partition_error,
    ("dispatch", "topic_expression"): topic_expression,
    ("dispatch", "topic_expression_avro"): topic_expression_avro,
    ("dispatch", "topics"): topics,
    ("dispatch", "ddl_topic"): ddl_topic,
    ("split", "split_update"): split_update,
    ("split", "sort_txn"): sort_txn,
}

CHECKS: Final[Mapping[str, Callable[[Mapping[str, Input]], None]]] = {
    kind: lambda vector, check=check: check(vector["input"], vector["expected"])  # type: ignore[misc]
    for (protocol, kind), check in _CHECKS.items()
    if protocol == "dispatch"
}
