"""Values of unique keys as columns: as compared, as a row has them, and the rows in which two images differ (rule 21).
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.key import compared
from drainer.changes.texts import as_binary, as_string, data_of, numbers_of, text_of
from drainer.changes.vector import Mask
from drainer.row.claimed import OtherKey, coarse
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.key import Same

_ASCII: Final = 128
# The ASCII characters that Python's str.rstrip removes, which `coarse` uses.
_SPACES: Final = "".join(chr(code) for code in range(_ASCII) if chr(code).isspace())
_NUMBERS: Final = frozenset({Family.INT, Family.ENUM, Family.SET, Family.BIT})


def without_null(columns: Sequence[Any]) -> Mask | None:
    """Return the rows in which no column is NULL; None: all rows."""
    there: Mask | None = None
    for column in columns:
        if column.null_count:
            valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
            there = valid if there is None else there & valid
    return there


def values_of(
    other: OtherKey, forms: Sequence[Form], columns: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Return (values as compared, unchanged values if those differ)."""
    if not other.is_coarse:
        return tuple(compared(*part) for part in zip(forms, columns, other.same, strict=True)), None  # type: ignore[arg-type]
    shown = tuple(_as_it_is(form, column) for form, column in zip(forms, columns, strict=True))
    value = [
        coarse_texts(text) if same is None else compared(form, column, same)
        for form, column, text, same in zip(forms, columns, shown, other.same, strict=True)
    ]
    return tuple(value), shown


def _as_it_is(form: Form, column: Any) -> Any:
    """Return integers, or the text of a literal."""
    return numbers_of(form, column) if form.family in _NUMBERS else as_binary(text_of(form, column))


def coarse_texts(column: Any) -> Any:
    """Return drainer.row.claimed.coarse of each text; ASCII texts are converted together."""
    text = as_string(column)
    if not (data_of(column) >= _ASCII).any():
        return as_binary(pc.ascii_rtrim(pc.ascii_lower(text), _SPACES))
    plain = as_binary(pc.ascii_rtrim(pc.ascii_lower(text), _SPACES))
    other = pc.invert(pc.string_is_ascii(text))
    slow = [str(coarse(one)).encode() for one in column.filter(other).to_pylist()]
    return pc.replace_with_mask(plain, other, pa.array(slow, pa.binary()))


def values_differ(other: OtherKey, forms: Sequence[Form], old: Sequence[Any], new: Sequence[Any]) -> Mask:
    """Return the rows in which two images have different values of a key. `forms`, `old`, `new`: those of the key's
    columns. All values with a NULL are equal."""
    was, now = without_null(old), without_null(new)
    every = np.ones(len(old[0]), np.bool_)
    was, now = every if was is None else was, every if now is None else now
    differs: Mask = was != now
    both = was & now
    for form, before, behind, same in zip(forms, old, new, other.same, strict=True):
        differs |= both & compared_differ(form, before, behind, None if other.is_coarse else same)
    return differs


def compared_differ(form: Form, old: Any, new: Any, same: Same | None) -> Mask:
    """Return the rows in which two images of one column differ as compared; `same` None: unchanged."""
    if same is None:
        return differ(_as_it_is(form, old), _as_it_is(form, new))
    return differ(compared(form, old, same), compared(form, new, same))


def differ(old: Any, new: Any) -> Mask:
    """Return the rows in which two columns differ; NULL equals NULL. (Rows contain no NaN, and 0.0 instead of -0.0.)"""
    found = pc.not_equal(old, new)
    if found.null_count:
        found = pc.coalesce(found, pc.xor(old.is_null(), new.is_null()))
    differs: Mask = found.to_numpy(zero_copy_only=False)
    return differs
