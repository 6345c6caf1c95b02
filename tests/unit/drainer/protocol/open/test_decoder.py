"""Messages that are damaged, old or of another producer: an event that is right, or a MessageError that says where."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from binlog.tidb.types import Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.encoder import Ddl
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import Reader
from drainer.protocol.open.decoder import OpenDecoder, image
from drainer.protocol.open.encoder import OpenEncoder
from drainer.protocol.open.framing import quote, unquote
from drainer.protocol.registry import Compression, ProtocolOptions
from drainer.protocol.table import ColumnFlag

OPTIONS = ProtocolOptions("open-protocol")


def options(how: Compression = "none") -> ProtocolOptions:
    return ProtocolOptions("open-protocol", large_message_handle_compression=how)


def framed(keys: list[object], values: list[object]) -> tuple[bytes, bytes]:
    def parts(documents: list[object]) -> bytes:
        texts = [d if isinstance(d, bytes) else json.dumps(d).encode() for d in documents]
        return b"".join(len(text).to_bytes(8, "big") + text for text in texts)

    return (1).to_bytes(8, "big") + parts(keys), parts(values)


def row(value: object, **key: object) -> RowEvent:
    (event,) = OpenDecoder(OPTIONS).decode(*framed([{"ts": 5, "t": 1, **key}], [value]))
    assert isinstance(event, RowEvent)
    return event


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["id", "YQ==", "\\x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("utpdvfhq"), inner, max_size=4),
)
_columns = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.fixed_dictionaries({"t": st.integers(0, 256) | _json, "f": st.integers(0, 300) | _json, "v": _json}),
    max_size=2,
)


@given(
    st.fixed_dictionaries({"ts": st.integers(0, 9), "t": st.integers(0, 5)}, optional={"scm": _json, "rid": _json}),
    st.dictionaries(st.sampled_from(["u", "p", "d", "q", "t", "partition"]), _columns | _json),
)
def test_any_json_document_gives_events_or_message_error(key: dict[str, Any], value: dict[str, Any]) -> None:
    with suppress(MessageError):
        OpenDecoder(OPTIONS).decode(*framed([key], [value]))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"", b"", "the key begins with nothing, only version 1 is known"),
        (bytes(7) + b"\2", b"", "the key begins with 0000000000000002, only version 1 is known"),
        (bytes(7) + b"\1" + b"\xff" * 8, b"", "the key ends within event 0, which begins at byte 8"),
        (*framed([{"t": 3, "ts": 1}, {"t": 3, "ts": 1}], [b""]), "2 keys and 1 values in one message"),
        (
            *framed([{"t": 3, "ts": 1}, {"t": 9, "ts": 1}], [b"", b""]),
            "event 1 of the message: key: an event of type 9",
        ),
        (*framed([{"t": 3, "ts": 1}], [b"{}"]), "a resolved event has none, this one has 2 bytes"),
        (*framed([{"t": 3, "ts": -1}], [b""]), "key: ts is -1, a number from 0 to 2^64-1 is expected"),
        (*framed([{"t": 3}], [b""]), "key: no member 'ts', a number from 0 to 2^64-1 is expected"),
        (*framed([{"t": True, "ts": 1}], [b""]), "key: t is True, a number from 0 to 2^64-1 is expected"),
        (*framed([b"[" * 100_000], [b""]), "key: no JSON at character 1025: depth limit"),
        (*framed([b'{"t":3,"ts":NaN}'], [b""]), "key: no JSON at character 12: unexpected character"),
        (*framed([b'{"t":3,"ts":1,"scm":"\\ud800"}'], [b""]), "key: no JSON at character 21: no low surrogate"),
        (*framed([{"t": 2, "ts": 1}], [{"t": 1}]), "value: no member 'q', a string is expected"),
        (
            *framed([{"t": 4, "ts": 1}], [{"partition": "3"}]),
            "value: partition is '3', a number from 0 to 2^64-1 is expected",
        ),
        (*framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 3}}}]), "value.u.a: no member 'v', a value is expected"),
        (*framed([{"t": 1, "ts": 1}], [{"u": {"a": [1]}}]), "value.u: a is [1], an object is expected"),
        (*framed([{"t": 1, "ts": 1}], [{"p": {"a": {"t": 3, "v": 1}}}]), "a row has p, not u, u and p, or d"),
        (
            *framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 3, "v": 1.5}}}]),
            "u.a: 1.5 is no value of a column of type 3",
        ),
        (*framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 8, "v": 2**64}}}]), "a column of type 8: no integer"),
        (
            *framed(
                [{"t": 1, "ts": 1}], [b'{"u": {"a": {"t": 8, "v": 18446744073709551616}, "b": {"t": 5, "v": -0}}}']
            ),
            "beyond 64 bits",
        ),
        (
            *framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 252, "v": "YQ"}}}]),
            "'YQ' is no value of a column of type 252",
        ),
        (
            *framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 15, "f": 65, "v": "\\q"}}}]),
            "not an escape of Go at character 0",
        ),
        (*framed([{"t": 1, "ts": 1}], [{"u": {"a": {"t": 15, "v": 5}}}]), "u.a: 5 is no value of a column of type 15"),
        (
            *framed([{"t": 1, "ts": 1, "ohk": 1}], [{"u": {"a": {"t": 3, "v": 1}}}]),
            "ohk is 1, true or false is expected",
        ),
    ],
)
def test_message_error_says_what_is_wrong_and_where(key: bytes, value: bytes, error: str) -> None:
    with pytest.raises(MessageError) as caught:
        OpenDecoder(OPTIONS).decode(key, value)
    assert error in str(caught.value)
    assert str(caught.value).startswith("open-protocol")


def test_message_of_pingcap_ticdc_is_read() -> None:
    """pingcap/ticdc 1.12: other orders, `scm` and `tbl` though empty, `"ohk":false` beside a claim, an empty `p`."""
    cell = {"v": 1, "f": 11, "t": 3, "h": True, "new member": []}
    event = row({"p": {}, "u": {"b": cell, "a": cell}}, tbl="", scm="", ohk=False, ccl="file:///c/x.json", ptn=6)
    assert event == RowEvent(
        Change.UPDATE,
        5,
        "",
        "",
        old={},
        new={"b": ColumnValue(1, 3, 11), "a": ColumnValue(1, 3, 11)},
        partition_id=6,
        handle_only=True,
        claim="file:///c/x.json",
    )
    assert not row({"u": {"a": cell}, "p": None}, ohk=False).handle_only
    assert row({"u": {"a": cell}}, ohk=True).handle_only


def test_unknown_flags_and_types_are_kept() -> None:
    cells = {
        "flags": {"t": 3, "f": 4099, "v": 7},
        "kind": {"t": 77, "v": "x"},
        "none": {"t": 6, "v": None},
        "text": {"t": 1, "v": "aa"},
        "vector": {"t": 225, "f": 65, "v": "[1,2]"},
        "large set": {"t": 248, "v": 2**64 - 1},
        "latin1": {"t": 252, "v": "/w=="},
    }
    new = row({"u": cells}).new
    assert new is not None
    assert {name: (c.type_code, c.flags, c.value) for name, c in new.items()} == {
        "flags": (3, 4099, 7),
        "kind": (77, 0, "x"),
        "none": (6, 0, None),
        "text": (1, 0, "aa"),
        "vector": (225, 65, "[1,2]"),
        "large set": (248, 0, 2**64 - 1),
        "latin1": (252, 0, b"\xff"),
    }


def test_row_without_columns_is_no_event() -> None:
    documents: list[object] = [{}, {"u": {}}, {"u": None, "p": {}}]
    for value in documents:
        assert OpenDecoder(OPTIONS).decode(*framed([{"ts": 5, "t": 1}], [value])) == []


def test_message_with_only_version_has_no_events() -> None:
    for value in (b"", None):
        assert OpenDecoder(OPTIONS).decode((1).to_bytes(8, "big"), value) == []


def test_message_with_events_of_several_kinds_is_read_in_order() -> None:
    keys: list[object] = [{"ts": 1, "t": 3}, {"ts": 2, "t": 1}, {"ts": 3, "t": 3}]
    found = OpenDecoder(OPTIONS).decode(*framed(keys, [b"", {"d": {"a": {"t": 3, "v": 1}}}, b""]))
    assert [type(event) for event in found] == [ResolvedEvent, RowEvent, ResolvedEvent]


def test_varchar_in_base64_is_read_with_its_option() -> None:
    """Seed 002's logs: `YWE=`."""
    legacy = ProtocolOptions("open-protocol", open_varchar_base64=True)
    cells = {"a": {"t": 15, "v": "YWE="}, "b": {"t": 254, "f": 65, "v": "YWE="}}
    (event,) = OpenDecoder(legacy).decode(*framed([{"ts": 5, "t": 1}], [{"u": cells}]))
    assert isinstance(event, RowEvent) and event.new is not None
    assert {name: c.value for name, c in event.new.items()} == {"a": "aa", "b": b"aa"}
    with pytest.raises(MessageError, match="'aa!' is no value"):
        OpenDecoder(legacy).decode(*framed([{"ts": 5, "t": 1}], [{"u": {"a": {"t": 15, "v": "aa!"}}}]))


def test_message_of_another_compression_is_refused() -> None:
    for written, told in (
        ("snappy", "none"),
        ("none", "snappy"),
        ("lz4", "snappy"),
        ("snappy", "lz4"),
        ("none", "lz4"),
    ):
        (ddl,) = OpenEncoder(options(written)).ddl(Ddl(7, 6, "test", "t1", "DROP TABLE `t1`", 4))  # type: ignore[arg-type]
        with pytest.raises(MessageError):
            OpenDecoder(options(told)).decode(ddl.key, ddl.value)  # type: ignore[arg-type]


def test_snappy_block_with_huge_declared_size_is_refused() -> None:
    with pytest.raises(MessageError, match="more than 1,073,741,824 bytes"):
        OpenDecoder(options("snappy")).decode(*framed([{"ts": 5, "t": 1}], [b"\xff\xff\xff\xff\x0f" + b"\0" * 9]))


_bytes = st.binary(max_size=60) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))


@given(_bytes)
def test_quoted_bytes_unquote_to_the_same_bytes(value: bytes) -> None:
    text = quote(value)
    assert unquote(text) == value
    assert text.isprintable()


@given(_bytes)
def test_quote_equals_gos_quoting_rune_by_rune(value: bytes) -> None:
    """As Go's documentation says it, rune by rune."""
    short = dict(zip(b'\a\b\t\n\v\f\r"\\', (rf"\{char}" for char in 'abtnvfr"\\'), strict=True))
    wanted, at = "", 0
    while at < len(value):
        size, rune = next(((n, r) for n in (1, 2, 3, 4) if len(r := _rune(value[at : at + n])) == 1), (1, ""))
        code = ord(rune) if rune else value[at]
        if code in short and rune:
            wanted += short[code]
        elif rune and rune.isprintable():
            wanted += rune
        else:
            wanted += (
                f"\\x{code:02x}" if not rune or code < 128 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
            )
        at += size
    assert quote(value) == wanted


def _rune(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"\101\x41A", b"AAA"), (r"é\U0001f600", "é😀".encode()), (r"\377\a", b"\xff\a"), (r"\\n", b"\\n"), ("'", b"'")],
)
def test_unquote_reads_all_escapes_of_go(text: str, value: bytes) -> None:
    assert unquote(text) == value


@pytest.mark.parametrize("text", ["\\", r"\x4", r"\400", r"\ud800", r"\U00110000", r"\'", 'a"b', "a\nb", r"\8"])
def test_unquote_refuses_escapes_that_go_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="escape"):
        unquote(text)


@pytest.mark.parametrize("tp", [tp for tp in Tp if tp not in (Tp.NULL, Tp.GEOMETRY)])
def test_null_of_every_type_is_decoded(tp: Tp) -> None:
    found: dict[str, ColumnValue] = image(Reader({"c": {"t": int(tp), "f": 64, "v": None}}, "u"), base64_text=False)
    assert found == {"c": ColumnValue(None, int(tp), int(ColumnFlag.NULLABLE))}


@pytest.mark.parametrize("tp", [tp for tp in Tp if tp not in (Tp.NULL, Tp.GEOMETRY)])
@pytest.mark.parametrize("value", [True, [], {}])
def test_boolean_list_or_object_value_is_refused_for_every_type(tp: Tp, value: Value) -> None:
    with pytest.raises(MessageError, match="neither number nor string"):
        image(Reader({"c": {"t": int(tp), "f": 64, "v": value}}, "u"), base64_text=False)
