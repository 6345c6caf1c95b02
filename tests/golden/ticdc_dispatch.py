"""Vectors of TiCDC's dispatchers: hashes, partitions, topics, and where DDLs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any, Final

import pyarrow as pa
import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.dispatcher import Dispatcher, hashed_texts, row_hashes
from drainer.dispatch.rules import DispatchRule, Router, TopicExpression
from drainer.protocol.encoder import DdlScope
from drainer.protocol.registry import PROTOCOLS, make_encoder
from drainer.protocol.table import Table
from drainer.row.column_type import ColumnType
from tests.golden.vector_files import Vector, only
from tests.support.dispatch_hash import hash_of
from tests.support.protocol_options import protocol_options
from tests.support.row_changes import make_changes, make_table

LONG: Final = FieldType(Tp.LONGLONG, flen=20, decimal=0)
_DOUBLE: Final = FieldType(Tp.DOUBLE, flen=22)
_TEXT: Final = FieldType(Tp.VARCHAR, flen=40, charset="utf8mb4", collate="utf8mb4_bin")
# TiCDC's protocols that there are none of here.
_ABSENT: Final = {"maxwell", "craft", "canal"}


def _router(rules: list[Vector], default_topic: str) -> Router:
    made = []
    for rule in rules:
        matcher, partition, topic = only(rule, "matcher", "partition topic")
        made.append(DispatchRule(matcher=tuple(matcher), partition=partition or "", topic=topic or ""))
    return Router(made, default_topic)


def _hashed(kind: FieldType, value: object) -> str:
    column_type = ColumnType.of(kind)
    (text,) = hashed_texts(column_type, pa.array([value], column_type.decoded_type), UTC).to_pylist()
    return bytes(text).decode()


def column_value_string(vector: Vector) -> None:
    """A boolean is a TINYINT(1) here; text that is a number is a DECIMAL's."""
    (value,) = only(vector["input"], "value")
    (text,) = only(vector["expected"], "string")
    if value is None:
        table = make_table("d", "t", [("c", LONG)])
        changes = make_changes(table, Kind.INSERT, new=[[None]])
        assert row_hashes(table, [0], changes.image, 1, UTC).tolist() == [
            hash_of([[b"d", b"t"], [b"c", text.encode()]])
        ]
        return
    if isinstance(value, bool):
        assert _hashed(FieldType(Tp.TINY, flen=1), int(value)) == text
        return
    kind = FieldType(Tp.NEWDECIMAL, flen=10, decimal=2) if isinstance(value, str) else _kind_of(value)
    assert _hashed(kind, value) == text
    made = make_table("d", "t", [("c", kind)])
    image = make_changes(made, Kind.INSERT, new=[[value]]).image
    assert row_hashes(made, [0], image, 1, UTC).tolist() == [hash_of([[b"d", b"t"], [b"c", text.encode()]])]


def _kind_of(value: object) -> FieldType:
    """A column's type, of a value as JSON has it."""
    assert value is None or isinstance(value, int | float | str), f"no value this check can read: {value!r}"
    if isinstance(value, str | float):
        return _TEXT if isinstance(value, str) else _DOUBLE
    return replace(LONG, flag=Flag.UNSIGNED) if (value or 0) >= 1 << 63 else LONG


def check_hash(vector: Vector) -> None:
    (groups,) = only(vector["input"], "groups")
    number, text = only(vector["expected"], "u32 hex")
    assert _hash(groups) == number == int(text, 16)


def _hash(groups: list[list[str]]) -> int:
    return hash_of([[part.encode() for part in group] for group in groups])


def _partition(rule: DispatchRule, table: Table, row: list[Any], count: int, commit_ts: int = 5) -> int:
    dispatcher = Dispatcher(Router([rule], "topic"), {"topic": count}, UTC)
    (routes,) = dispatcher.routes([make_changes(table, Kind.INSERT, new=[row], commit_ts=commit_ts)])
    (found,) = routes.partitions.tolist()
    return int(found)


def partition(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    rule, count, *optional = only(
        given,
        "rule partition_num",
        "schema table hash_groups handle_key_columns other_columns index index_columns columns table_column_names row "
        "commit_ts",
    )
    schema, name, groups, keys, others, index, index_columns, columns, names, row, commit_ts = optional
    number, key, hashed = only(expected, "partition partition_key_string", "hash_u32")
    values = row or {**(keys or {}), **(others or {})} or {"id": 1}
    assert list(values) == (names or list(values))
    kinds = {column: _kind_of(value) for column, value in values.items()}
    if index:
        kinds = {column: replace(kind, flag=kind.flag | Flag.NOT_NULL) for column, kind in kinds.items()}
    table = make_table(
        schema or "test",
        name or "t1",
        list(kinds.items()),
        primary=list(keys or ()),
        unique=[index_columns] if index else [],
    )
    if index:  # its own spelling is another than the rule's
        info = replace(table.info, indexes=(replace(table.info.indexes[0], name=index.lower()),))
        table = replace(table, info=info)
    configured = DispatchRule(matcher=("*.*",), partition=rule, index=index or "", columns=tuple(columns or ()))
    image = [value.encode() if isinstance(value, str) else value for value in values.values()]
    assert _partition(configured, table, image, count, commit_ts or 5) == number
    if groups is None:
        assert (rule, hashed, key) == ("ts", None, str(commit_ts))
    else:
        assert _hash(groups) == hashed
        assert key == (f"{schema}.{name}" if rule in ("default", "table") else str(hashed))


def partition_error(vector: Vector) -> None:
    rule, columns, index = only(vector["input"], "rule", "columns index")
    error, words = only(vector["expected"], "error message_contains")
    assert error == "CDC:ErrDispatcherFailed"
    table = make_table("test", "t1", [("col1", LONG), ("col2", LONG)])
    with pytest.raises(DispatchError) as caught:
        configured = DispatchRule(matcher=("*.*",), partition=rule, columns=tuple(columns or ()), index=index or "")
        _partition(configured, table, [1, 2], 16)
    assert words in str(caught.value)


def _topic_expression(vector: Vector, protocol: str) -> None:
    text, schema, table = only(vector["input"], "expression", "schema table")
    valid, topic, error = only(vector["expected"], "valid", "topic error")
    assert isinstance(valid, bool)
    if not valid:
        assert error in (None, "CDC:ErrKafkaTopicExprInvalid")
        with pytest.raises(DispatchConfigError):
            TopicExpression.parse(text, protocol)
        return
    parsed = TopicExpression.parse(text, protocol)
    if topic is not None:
        assert parsed.topic(schema, table) == topic


def topic_expression(vector: Vector) -> None:
    _topic_expression(vector, "open-protocol")


def topic_expression_avro(vector: Vector) -> None:
    _topic_expression(vector, "avro")


def topics(vector: Vector) -> None:
    """In the order of the first table that needs each."""
    default, rules, tables = only(vector["input"], "default_topic rules tables")
    (wanted,) = only(vector["expected"], "topics")
    names = [tuple(name.split(".", 1)) for name in tables]
    assert _router(rules, default).topics((schema, table) for schema, table in names) == wanted


def ddl_topic(vector: Vector) -> None:
    default, rules, schema, table, before = only(vector["input"], "default_topic rules schema table pre_table")
    (topic,) = only(vector["expected"], "topic")
    assert _router(rules, default).topic(*(before or (schema, table))) == topic


def ddl_partition(vector: Vector) -> None:
    (protocols,) = only(vector["input"], "protocols")
    everywhere, first = only(vector["expected"], "all_partitions partition_zero")
    assert sorted(protocols) == sorted([*everywhere, *first])
    for name in protocols:
        if name not in PROTOCOLS:
            assert name in _ABSENT
            continue
        scope = make_encoder(_options(name)).ddl_scope
        assert scope is (DdlScope.ALL_PARTITIONS if name in everywhere else DdlScope.FIRST_PARTITION), name


def _options(protocol: str) -> Any:
    """Avro has DDLs only where watermarks are on."""
    more = {
        "schema-registry": "http://127.0.0.1:8081",
        "enable-tidb-extension": "true",
        "avro-enable-watermark": "true",
    }
    return protocol_options({"protocol": protocol, **(more if protocol == "avro" else {})})


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {
    "column_value_string": column_value_string,
    "hash": check_hash,
    "partition": partition,
    "partition_error": partition_error,
    "topic_expression": topic_expression,
    "topic_expression_avro": topic_expression_avro,
    "topics": topics,
    "ddl_topic": ddl_topic,
    "ddl_partition": ddl_partition,
}
