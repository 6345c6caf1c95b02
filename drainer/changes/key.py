"""The key by which rows are folded, as columns: the values that are compared (rules 9: what may be folded, and 10:
equal keys), and the same as bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.texts import as_binary, as_string, data_of, fixed_width, numbers_of, text_of
from drainer.changes.vector import Ints, Words
from drainer.row.column_type import ColumnType
from drainer.row.key import FoldKey, Same, trim_fraction
from drainer.row.type_class import TypeClass

_NUMBERS: Final = frozenset({TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT})
_SIGN = np.uint64(1 << 63)
IDENTITY_BYTES: Final = 9  # of a whole number
_WITH_FRACTION: Final = frozenset({TypeClass.DECIMAL, TypeClass.DATETIME, TypeClass.TIME})


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some rows. `identity`: row.key.identity of each, a binary array. `numbers`: the keys in the order of
    identities, if each key is one whole number; else None. `signed`: whether these numbers are signed."""

    identity: Any
    numbers: Words | None
    signed: bool = False

    def __len__(self) -> int:
        return len(self.identity)


def keys_of(key: FoldKey, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Keys:
    """Return the rows' keys. `columns`: those of all targets; the key's columns must be present and without NULLs."""
    parts = zip(key.columns, key.same, strict=True)
    return joined_keys([compared(column_types[at], columns[at], same) for at, same in parts])


def compared(column_type: ColumnType, column: Any, same: Same) -> Any:
    """Return one column of a key as it is compared: whole numbers, or binary."""
    if column_type.type_class in _NUMBERS:
        return numbers_of(column_type, column)
    return _compared(column_type, column, same)


def joined_keys(columns: Sequence[Any]) -> Keys:
    """Join a key's columns, as compared and without NULLs."""
    if len(columns) == 1:
        (column,) = columns
        return Keys(column, None) if column.type == pa.binary() else _number_keys(column)
    shown = []
    for column in columns:
        if column.type != pa.binary():
            shown += [b"\x01", _number_keys(column).identity, b""]
        else:
            text = column
            if (data_of(text) == 0).any():
                text = pc.replace_substring(text, b"\0", b"\0\xff")
            shown += [b"\x02", text, b"\0\0"]
    joined = [part if not isinstance(part, bytes) else pa.scalar(part, pa.binary()) for part in (*shown, b"")]
    return Keys(pc.binary_join_element_wise(*joined), None)


def _number_keys(column: Any) -> Keys:
    values = column.to_numpy(zero_copy_only=False)
    # modulo 2^64; the first byte tells whether the sum reached 2^64
    shifted: Words = values.view(np.uint64) + _SIGN
    signed = column.type == pa.int64()
    octets = np.zeros((len(values), IDENTITY_BYTES), np.uint8)
    octets[:, 1:] = shifted.astype(">u8").view(np.uint8).reshape(-1, 8)
    if not signed:
        octets[:, 0] = values >= _SIGN
    return Keys(fixed_width(octets, column), shifted if signed else values, signed)


def _compared(column_type: ColumnType, column: Any, same: Same) -> Any:
    """Return a part of a key that is not a whole number, as it is compared."""
    text = text_of(column_type, column)
    if same is Same.PADDED and column_type.type_class is TypeClass.TEXT:
        if (data_of(text) == ord(" ")).any():
            return as_binary(pc.ascii_rtrim(as_string(text), " "))
        return text
    if same is Same.TRIMMED and column_type.type_class in _WITH_FRACTION:
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


def concat_keys(keys: Sequence[Keys]) -> Keys:
    """Concatenate the keys of several parts. The numbers of a column that was signed and is now unsigned are compared
    by their identities.
    """
    if len(keys) == 1:
        return keys[0]
    identity = pa.concat_arrays([one.identity for one in keys])
    numbers = [one.numbers for one in keys if one.numbers is not None and one.signed is keys[0].signed]
    if len(numbers) < len(keys):
        return Keys(identity, None)
    return Keys(identity, np.concatenate(numbers), keys[0].signed)


def keys_from(identity: Any, *, of_number: bool) -> Keys:
    """Make keys from identities alone. `of_number`: each is one whole number."""
    if not of_number:
        return Keys(identity, None)
    octets = data_of(identity).reshape(-1, IDENTITY_BYTES)
    numbers = np.ascontiguousarray(octets[:, 1:]).view(">u8").reshape(-1).astype(np.uint64)
    if not octets[:, 0].any():
        return Keys(identity, numbers, True)
    if ((octets[:, 0] == 0) & (numbers < _SIGN)).any():
        return Keys(identity, None)  # some below 0 and some of 2^63 and more
    return Keys(identity, numbers - _SIGN)


def ranks(keys: Keys) -> npt.NDArray[Any]:
    """Return a number for each key, in the order of identities. Equal keys get equal numbers."""
    if keys.numbers is not None:
        return keys.numbers
    coded = keys.identity.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank: Ints = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    found: Ints = rank[coded.indices.to_numpy()]
    return found
