"""The key by which rows are folded, as columns: each key as the bytes by which it is compared (rules 9: what may be
folded, and 10: equal keys). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.texts import as_binary, as_string, data_of, fixed_width, numbers_of, text_of
from drainer.changes.vector import Ints, Mask, Words
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.key import WITH_FRACTION, FoldKey, Same, trim_fraction
from drainer.row.text import NUMBERS

_SIGN = np.uint64(1 << 63)
_IDENTITY_BYTES: Final = 9  # of a whole number


def identities(key: FoldKey, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
    """Return row.key.identity of each row's key, a binary array. `columns`: those of all targets; the key's columns
    must be present and without NULLs."""
    parts = zip(key.columns, key.same, strict=True)
    return _joined([_compared(column_types[at], columns[at], same) for at, same in parts if same is not Same.CONSTANT])


def _joined(columns: Sequence[Any]) -> Any:
    """Join a key's columns, as compared: whole numbers, or binary."""
    if len(columns) == 1:
        (column,) = columns
        return column if column.type == pa.binary() else _number_identities(column)
    shown = []
    for column in columns:
        if column.type != pa.binary():
            shown += [b"\x01", _number_identities(column), b""]
        else:
            text = column
            if (data_of(text) == 0).any():
                text = pc.replace_substring(text, b"\0", b"\0\xff")
            shown += [b"\x02", text, b"\0\0"]
    joined = [part if not isinstance(part, bytes) else pa.scalar(part, pa.binary()) for part in (*shown, b"")]
    return pc.binary_join_element_wise(*joined)


def _number_identities(column: Any) -> Any:
    values = column.to_numpy(zero_copy_only=False)
    # modulo 2^64; the first byte tells whether the sum reached 2^64
    shifted: Words = values.view(np.uint64) + _SIGN
    octets = np.zeros((len(values), _IDENTITY_BYTES), np.uint8)
    octets[:, 1:] = shifted.astype(">u8").view(np.uint8).reshape(-1, 8)
    if column.type != pa.int64():
        octets[:, 0] = values >= _SIGN
    return fixed_width(octets, column)


def _compared(column_type: ColumnType, column: Any, same: Same) -> Any:
    """Return one column of a key as it is compared: whole numbers, or binary."""
    if column_type.type_class in NUMBERS:
        return numbers_of(column_type, column)
    text = text_of(column_type, column)
    if same is Same.PADDED and column_type.type_class is TypeClass.TEXT:
        if (data_of(text) == ord(" ")).any():
            return as_binary(pc.ascii_rtrim(as_string(text), " "))
        return text
    if same is Same.TRIMMED and column_type.type_class in WITH_FRACTION:
        if column_type.type_class is not TypeClass.DECIMAL:
            pointed = column_type.kind.decimal > 0
        elif pc.all(pc.match_substring(as_string(text), ".")).as_py():
            pointed = True
        else:  # each row has its own number of digits
            trimmed = [None if value is None else trim_fraction(value) for value in text.to_pylist()]
            return pa.array(trimmed, pa.binary())
        if pointed:
            return as_binary(pc.ascii_rtrim(pc.ascii_rtrim(as_string(text), "0"), "."))
    return text


def ranks(table: Ints, identity: Any) -> Words:
    """Return a number for each key: within a table in the order of identities, equal for equal keys. Identities of nine
    bytes that begin with 0, those of whole numbers, are compared as numbers, which is several times faster."""
    plain = _plain(identity)
    if plain.all():
        return _numbers(identity)
    texts = np.isin(table, table[~plain])
    rank: Words = np.empty(len(table), np.uint64)
    coded = identity.filter(pa.array(texts)).dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    of_code: Words = np.empty(len(order), np.uint64)
    of_code[order] = np.arange(len(order), dtype=np.uint64)
    rank[texts] = of_code[coded.indices.to_numpy()]
    if not texts.all():
        rank[~texts] = _numbers(identity.filter(pa.array(~texts)))
    return rank


def _plain(identity: Any) -> Mask:
    """Return which identities are of nine bytes that begin with 0."""
    lengths = pc.binary_length(identity).to_numpy(zero_copy_only=False).astype(np.int64)
    found: Mask = lengths == _IDENTITY_BYTES
    begins = np.cumsum(lengths) - lengths
    found[found] = data_of(identity)[begins[found]] == 0
    return found


def _numbers(identity: Any) -> Words:
    octets = data_of(identity).reshape(-1, _IDENTITY_BYTES)
    return np.ascontiguousarray(octets[:, 1:]).view(">u8").reshape(-1).astype(np.uint64)
