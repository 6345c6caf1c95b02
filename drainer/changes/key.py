"""A fold's key as a column: what is compared (rules 9 and 10), and as bytes, one for one. Pure."""

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
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.key import FoldKey, Same, trim_fraction

_NUMBERS: Final = frozenset({Family.INT, Family.ENUM, Family.SET, Family.BIT})
_SIGN = np.uint64(1 << 63)
IDENTITY_BYTES: Final = 9  # of a whole number
_WITH_FRACTION: Final = frozenset({Family.DECIMAL, Family.DATETIME, Family.TIME})


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of some rows. `identity`: as of row.key.identity, a binary array. `numbers`: where each key is one whole
    number, these, in the order of identities; else None. `signed`: of which kind they are."""

    identity: Any
    numbers: Words | None
    signed: bool = False

    def __len__(self) -> int:
        return len(self.identity)


def keys_of(key: FoldKey, forms: Sequence[Form], columns: Sequence[Any]) -> Keys:
    """`columns`: of all targets, of which the key's must be there, without a NULL."""
    parts = zip(key.columns, key.same, strict=True)
    return joined_keys([compared(forms[at], columns[at], same) for at, same in parts])


def compared(form: Form, column: Any, same: Same) -> Any:
    """One column of a key as it is compared: whole numbers, or binary."""
    if form.family in _NUMBERS:
        return numbers_of(form, column)
    return _compared(form, column, same)


def joined_keys(columns: Sequence[Any]) -> Keys:
    """Keys of columns as compared, without a NULL."""
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
    shifted: Words = values.view(np.uint64) + _SIGN  # modulo 2^64, of which the first byte says whether it was reached
    signed = column.type == pa.int64()
    octets = np.zeros((len(values), IDENTITY_BYTES), np.uint8)
    octets[:, 1:] = shifted.astype(">u8").view(np.uint8).reshape(-1, 8)
    if not signed:
        octets[:, 0] = values >= _SIGN
    return Keys(fixed_width(octets, column), shifted if signed else values, signed)


def _compared(form: Form, column: Any, same: Same) -> Any:
    """A key's part that is no whole number, as compared."""
    text = text_of(form, column)
    if same is Same.PADDED and form.family is Family.TEXT:
        if (data_of(text) == ord(" ")).any():
            return as_binary(pc.ascii_rtrim(as_string(text), " "))
        return text
    if same is Same.TRIMMED and form.family in _WITH_FRACTION:
        if form.family is not Family.DECIMAL:
            pointed = form.kind.decimal > 0
        elif pc.all(pc.match_substring(as_string(text), ".")).as_py():
            pointed = True
        else:  # a row says itself how many digits it has
            trimmed = [None if value is None else trim_fraction(value) for value in text.to_pylist()]
            return pa.array(trimmed, pa.binary())
        if pointed:
            return as_binary(pc.ascii_rtrim(pc.ascii_rtrim(as_string(text), "0"), "."))
    return text


def concat_keys(keys: Sequence[Keys]) -> Keys:
    """Of several parts. Numbers of a column that was signed and is unsigned now are compared by their identities."""
    if len(keys) == 1:
        return keys[0]
    identity = pa.concat_arrays([one.identity for one in keys])
    numbers = [one.numbers for one in keys if one.numbers is not None and one.signed is keys[0].signed]
    if len(numbers) < len(keys):
        return Keys(identity, None)
    return Keys(identity, np.concatenate(numbers), keys[0].signed)


def keys_from(identity: Any, *, of_number: bool) -> Keys:
    """Keys of which only the identities are left; `of_number`: each is one whole number."""
    if not of_number:
        return Keys(identity, None)
    octets = data_of(identity).reshape(-1, IDENTITY_BYTES)
    numbers = np.ascontiguousarray(octets[:, 1:]).view(">u8").reshape(-1).astype(np.uint64)
    if not octets[:, 0].any():
        return Keys(identity, numbers, True)
    if ((octets[:, 0] == 0) & (numbers < _SIGN)).any():
        return Keys(identity, None)  # some below 0 and some above 2^63
    return Keys(identity, numbers - _SIGN)


def ranks(keys: Keys) -> npt.NDArray[Any]:
    """A number for each key, equal where keys are, in the order of their identities."""
    if keys.numbers is not None:
        return keys.numbers
    coded = keys.identity.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank: Ints = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    found: Ints = rank[coded.indices.to_numpy()]
    return found
