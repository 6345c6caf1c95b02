"""Identify the row that an event is about."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from drainer.protocol.event import Change, ColumnValue, Image, RowEvent
from drainer.protocol.table import ColumnFlag

REMOVES: Final = 1
ADDS: Final = 2

TableKeys = Mapping[tuple[str, str], tuple[str, ...]]  # (database, table) → columns of its key


def touched_rows(event: RowEvent, keys: TableKeys) -> list[tuple[bytes, int]]:
    """Return a digest of each row that the event removes, adds, or both (REMOVES, ADDS or their sum); empty if the key
    columns are not known. `keys`: the key columns of tables whose messages do not name them."""
    names = keys.get((event.schema, event.table))
    if event.change is not Change.UPDATE:
        row = _digest(event, event.key, event.new if event.new is not None else event.old, names)
        what = REMOVES if event.change is Change.DELETE else ADDS
        return [] if row is None else [(row, what)]
    new = _digest(event, event.key, event.new, names)
    if new is None:
        return []
    old = _digest(event, None, {**(event.new or {}), **(event.old or {})}, names) or new
    return [(new, REMOVES | ADDS)] if old == new or event.key is not None else [(old, REMOVES), (new, ADDS)]


def _digest(event: RowEvent, key: Image | None, image: Image | None, names: tuple[str, ...] | None) -> bytes | None:
    columns: dict[str, ColumnValue] = {}
    if key is not None:
        columns = dict(key)
    elif names is not None:
        columns = {name: image[name] for name in names if name in image} if image is not None else {}
    elif image is not None:
        columns = {name: column for name, column in image.items() if column.flags & ColumnFlag.HANDLE_KEY}
    if not columns:
        return None
    values = sorted((name, type(column.value).__name__, column.value) for name, column in columns.items())
    return blake2b(repr((event.schema, event.table, values)).encode(errors="surrogatepass"), digest_size=16).digest()
