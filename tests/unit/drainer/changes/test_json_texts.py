"""Columns of binary JSON as text: what is read together is what is read one by one."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from unittest import mock

import pyarrow as pa
import pytest
from binlog.errors import DecodeError
from binlog.tidb.json import BinaryJSON, decode_text, encode_json
from hypothesis import example, given
from hypothesis import strategies as st

from drainer.changes import json_texts as module
from drainer.changes.json_texts import DEPTH_MAX, LEAVES_MAX, TOGETHER_MIN, json_texts, shape_of, text_parts
from drainer.protocol.json_text import json_strings
from tests.unit.tidb.strategies import binary_json, finite, int64, json_text

MANY = TOGETHER_MIN
# Members whose values have one type each, so that several documents of the kind have one shape.
KINDS = {
    "int": int64,
    "uint": st.integers(1 << 63, (1 << 64) - 1),
    "float": finite | st.sampled_from([0.0, -0.0, 1.0, 1e21, 1e-7, 1e15, 123456789012.5]),
    "text": json_text | st.sampled_from(["<&>", '"\\', "\u2028", "‐", "\x7f", "y" * 127, "ä" * 64, "z" * 300, "\n"]),
    "literal": st.sampled_from([None, True, False]),
}
shapes = st.recursive(
    st.sampled_from(sorted(KINDS)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_text, inner, max_size=4),
    max_leaves=8,
)


def filled(draw: st.DrawFn, shape: object) -> object:
    if isinstance(shape, list):
        return [filled(draw, inner) for inner in shape]
    if isinstance(shape, dict):
        return {name: filled(draw, inner) for name, inner in shape.items()}
    return draw(KINDS[str(shape)])


@st.composite
def columns(draw: st.DrawFn) -> list[bytes | None]:
    """Documents of a few shapes, in any order, some NULL, some of no shape."""
    found: list[bytes | None] = []
    for shape in draw(st.lists(shapes, min_size=1, max_size=3)):
        some = [encode_json(filled(draw, shape)) for _ in range(draw(st.integers(1, 4)))]
        found += [bytes(draw(st.sampled_from(some))) for _ in range(draw(st.sampled_from([1, MANY, MANY + 7])))]
    found += [bytes(value) for value in draw(st.lists(binary_json, max_size=5))]
    found += [None] * draw(st.integers(0, 3))
    random.Random(draw(st.integers(0, 99))).shuffle(found)
    return found


def expected(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else decode_text(value)[0] for value in values]


def check(values: Sequence[bytes | None]) -> None:
    texts = expected(values)
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    assert json_texts(column).to_pylist() == [None if text is None else text.encode() for text in texts]
    nested = [None if text is None else json_strings([text])[0].encode() for text in texts]
    assert json_texts(column, json_strings).to_pylist() == nested


@given(columns())
@example([])
@example([None])
@example([bytes(encode_json({}))] * MANY)
@example([bytes(encode_json([[], {}, 1]))] * MANY)
def test_json_texts_of_column_equal_those_of_each_value(values: list[bytes | None]) -> None:
    check(values)


def test_json_documents_of_one_shape_are_read_together() -> None:
    dice = random.Random(1)
    documents = [
        encode_json(
            {
                "name": "x" * dice.choice([0, 3, 127, 128, 129, 255, 256, 16_383]),
                "n": [dice.randrange(1 << 40), dice.random()],
                "ok": None,
            }
        )
        for _ in range(1000)
    ]
    want = [text.encode() for text in map(BinaryJSON.text, documents)]
    column = pa.array([bytes(value) for value in documents], pa.binary())
    with mock.patch.object(module, "decode_text", side_effect=AssertionError):
        assert json_texts(column).to_pylist() == want


@pytest.mark.parametrize("sizes", [(1,), (127, 128, 129), (16_383, 16_384), (0, 200_000)])
def test_json_texts_of_any_length_are_right(sizes: tuple[int, ...]) -> None:
    check([bytes(encode_json(["a", "ü" * (size // 2) + "b" * (size % 2)])) for size in sizes for _ in range(MANY)])


def test_memory_of_long_json_texts_is_bounded() -> None:
    """Sixteen bytes were taken for one."""
    column = pa.array([bytes(encode_json({"a": "x" * 10_000}))] * 200, pa.binary())
    json_texts(column)
    tracemalloc.start()
    try:
        json_texts(column)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 6 * column.nbytes


def test_json_text_with_invalid_utf8_equals_that_of_single_value() -> None:
    document = bytes(encode_json({"a": "xyz"}))
    check([document.replace(b"xyz", b"x\xffz"), *[document] * MANY])
    check([document.replace(b"a", b"\xff")] * MANY)


def agrees(values: Sequence[bytes]) -> None:
    try:
        expected(values)
    except DecodeError:
        with pytest.raises(DecodeError):
            json_texts(pa.array(values, pa.binary()))
    else:
        check(values)


WHOLE = [bytes(encode_json({"a": ["xy", n, 1.5, True], "bc": {"d": "z" * n}})) for n in range(MANY)]
NAN = struct.pack("<d", float("nan"))


@pytest.mark.parametrize("at", range(len(WHOLE[3])))
def test_damaged_json_document_is_refused_or_read_as_single_value_is(at: int) -> None:
    """A document in which a byte was changed, or that is cut or longer, among whole ones."""
    whole = WHOLE[3]
    for byte in {0, 1, 3, 0x80, 0xFF, whole[at] + 1 & 0xFF, whole[at] - 1 & 0xFF}:
        agrees([*WHOLE, whole[:at] + bytes((byte,)) + whole[at + 1 :]])
    agrees([*WHOLE, whole[:at]])
    agrees([*WHOLE, whole[:at] + b"?" + whole[at:]])


def test_nan_in_json_document_is_refused() -> None:
    one = bytes(encode_json([1.5]))
    with pytest.raises(DecodeError, match="nan is not a JSON number"):
        json_texts(pa.array([one] * MANY + [one.replace(struct.pack("<d", 1.5), NAN)], pa.binary()))


@pytest.mark.parametrize("special", [*'<>&"\\\n\x1f\u2028\u2029\u2010\x7f', "a\x00", "&ü"])
def test_json_texts_escape_each_special_character(special: str) -> None:
    check([bytes(encode_json({"a": text})) for text in [special, *["plain"] * MANY]])


@given(st.lists(st.binary(max_size=60), min_size=MANY, max_size=MANY + 3))
def test_json_texts_of_any_bytes_agree_with_single_values(values: list[bytes]) -> None:
    agrees(values)


@given(binary_json)
def test_json_shape_holds_constant_parts_of_text(value: BinaryJSON) -> None:
    shape = shape_of(bytes(value))
    if shape is not None:
        constants = [part for part in text_parts(shape) if isinstance(part, str)]
        text = value.text()
        for part in constants:
            assert part in text
            text = text[text.index(part) + len(part) :]


def test_json_scalar_empty_deep_or_damaged_document_has_no_shape() -> None:
    deep: object = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    for value in (1, "a", {}, [], [[]], deep, list(range(LEAVES_MAX + 1))):
        assert shape_of(bytes(encode_json(value))) is None
    assert shape_of(b"") is None
    document = bytes(encode_json({"a": [1, "b"]}))
    assert shape_of(document) is not None
    assert shape_of(document + b"?") is None
    for end in range(len(document)):
        assert shape_of(document[:end]) is None
