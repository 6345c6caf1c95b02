"""What holds for each protocol: damaged messages raise MessageError and nothing else, and refusals name their place."""

from __future__ import annotations

from functools import cache

import pytest
from binlog.tidb.types import FieldType, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import EncodeError, MessageError, ProtocolConfigError
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions, make_encoder
from tests.support.protocol_cases import CASES, Case, Wire
from tests.support.row_changes import make_changes, make_table
from tests.support.typed_columns import COLUMNS, typed_row

SMALL = {"id", "name", "blob", "single", "stamp", "big_u", "dec", "choice"}
NAMES = [name for name, _ in COLUMNS]
TABLE = make_table("s", "t", [one for one in COLUMNS if one[0] in SMALL], primary=["id"])
# What begins an error of the protocol; of Avro and of compressed values there are several.
SAID = {"canal": "Canal-JSON message", "debezium": "Debezium ", "secondary": "secondary-binlog: ", "simple": "Simple "}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cache
def samples(case: Case) -> tuple[Wire, list[tuple[bytes | None, bytes | None]]]:
    """Two updates, and what else the protocol has: key and value of each message."""
    wire = Wire(case)
    old, new = ([v for v, name in zip(typed_row(1, of), NAMES, strict=True) if name in SMALL] for of in ((), NAMES))
    found = wire.messages(make_changes(TABLE, Kind.UPDATE, old=[old, new], new=[new, [2] + [None] * (len(new) - 1)]))
    if case.name != "pb file":
        ddl = Ddl(5, 4, "s", "t", "SOME ddl", 7, TABLE, TABLE)
        others = [wire.encoder.ddl(ddl), wire.encoder.resolved(5), wire.encoder.bootstrap(TABLE, 5)]
        others.append(wire.encoder.partitions_changed(3, 5))
        found += [(message.key, message.value) for messages in others for message in messages]
    return wire, found


@each_case
def test_message_that_is_cut_or_too_long_is_refused(case: Case) -> None:
    """But for the records of a file, whose length and checksum stand beside them. Debezium's keys are read of rows
    alone."""
    wire, messages = samples(case)
    for key, value in messages:
        assert wire.decode(key, value)
        keys = _damaged(key) if case.name != "debezium" or key == messages[0][0] else []
        for one in [*((key, part) for part in _damaged(value)), *((part, value) for part in keys)]:
            if case.name == "pb file":
                _read(wire, *one)
                continue
            with pytest.raises(MessageError) as refused:
                wire.decode(*one)
            assert str(refused.value).startswith(SAID.get(case.name, ""))


def _damaged(whole: bytes | None) -> list[bytes]:
    return [] if whole is None else [*(whole[:end] for end in range(1, len(whole))), whole + b"\0"]


def _read(wire: Wire, key: bytes | None, value: bytes | None) -> None:
    try:
        wire.decode(key, value)
    except MessageError as error:
        assert str(error)


@each_case
@given(data=st.data())
def test_message_with_changed_bytes_gives_events_or_message_error(case: Case, data: st.DataObject) -> None:
    wire, messages = samples(case)
    parts = [None if part is None else bytearray(part) for part in data.draw(st.sampled_from(messages))]
    for part in filter(None, parts):
        for _ in range(data.draw(st.integers(0, 3))):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    key, value = (None if part is None else bytes(part) for part in parts)
    _read(wire, key, value)


@each_case
def test_message_without_key_and_value_is_refused(case: Case) -> None:
    wire, _ = samples(case)
    for value in (None, b"", b"[]", b"null", b"NaN", b"\xff", b"[" * 100_000, b"1" * 5000):
        with pytest.raises(MessageError):
            wire.decode(None, value)


@each_case
@pytest.mark.parametrize("place", ["old", "new"])
def test_invalid_value_is_refused_with_column_and_commit_ts(case: Case, place: str) -> None:
    table = make_table("s", "t", [("id", COLUMNS[0][1]), ("at", FieldType(Tp.DATETIME))], primary=["id"])
    rows = {"old": [(1, 0), (2, 0)], "new": [(1, 0), (2, 0)]} | {place: [(1, 0), (2, (1 << 64) - 1)]}
    changes = make_changes(table, Kind.UPDATE, **rows, commit_ts=[7, 8])
    with pytest.raises(EncodeError, match=r"`s`\.`t`\.`at` at commit_ts 8: .*not a date and time"):
        Wire(case).messages(changes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_time_zone_is_refused(protocol: str) -> None:
    with pytest.raises(ProtocolConfigError, match="time-zone 'Mars' is not in the IANA database"):
        make_encoder(ProtocolOptions(protocol, time_zone="Mars"))
