"""Groups of transactions that touch a common key, for destinations that show only complete transactions (rule 33).
Pure.

What two transactions may have in common is a *node*, a hash: of a row's key, of a value of another unique key, before
and after the change, or of a table. A *link* is a pair of a node and a mark, and nodes with the same mark are in one
group. The marks of decoded rows are commit_ts. A collision of hashes only joins two groups, as do two transactions of
one commit_ts.

All changes of a table have one node in common if the table has no key by which it may be folded, or a unique key that
cannot be compared here (a prefix, a generated column, a collation that is not binary, a float). So have those of all
tables that foreign keys join, because a row depends on its parent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.table import IndexInfo, TableInfo
from binlog.tidb.types import UNSPECIFIED

from drainer.changes.decode import Changes
from drainer.changes.net import KeyEvents, identities, tables_of
from drainer.changes.slot_blob import table_seed
from drainer.changes.vector import Ints
from drainer.ddl.table_diff import foreign_keys
from drainer.row.codec import Codec, DecodedRow
from drainer.row.layout import FoldKey, comparison, identity, key_function
from drainer.schema.view import SchemaView

Links = tuple[Ints, Ints]  # nodes, and the mark of each
NO_LINKS: Final[Links] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def components(count: int, nodes: Ints, values: Ints) -> Ints:
    """Return, for each of `count` nodes, the smallest node of its connected component. `nodes` and `values`: each pair
    is an edge between a node and a value; nodes with the same value are connected."""
    label = np.arange(count)
    if not len(values):
        return label
    of_value = np.empty(int(values.max()) + 1, np.int64)
    while True:
        before = label
        of_value.fill(count)
        np.minimum.at(of_value, values, label[nodes])
        label = label.copy()
        np.minimum.at(label, nodes, of_value[values])
        np.minimum.at(label, before, label)
        label = label[label]
        if np.array_equal(label, before):
            return label


def linked(links: Sequence[Links]) -> Links:
    """Return the groups of more than one node: each node, in ascending order, and the smallest node of its group."""
    nodes, marks = (np.concatenate([link[at] for link in (NO_LINKS, *links)]) for at in (0, 1))
    _, mark, counts = np.unique(marks, return_inverse=True, return_counts=True)
    several = counts[mark] > 1
    found, node = np.unique(nodes[several], return_inverse=True)
    label = components(len(found), node, mark[several])
    several = np.bincount(label, minlength=len(found))[label] > 1
    return found[several], found[label[several]]


@dataclass(frozen=True, slots=True)
class Groups:
    """The slots of the nodes that are not alone in their group; `nodes` ascends. Other nodes are assigned by hash."""

    nodes: Ints
    slots: Ints

    def slots_of(self, nodes: Ints, slots: int) -> Ints:
        found = nodes % slots
        if len(self.nodes):
            at = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
            found = np.where(self.nodes[at] == nodes, self.slots[at], found)
        return found


NO_GROUPS: Final = Groups(*NO_LINKS)


def assign_groups(links: Sequence[Links], slots: int) -> Groups:
    """Assign the groups of some links to slots: the largest first, each to the slot that has the fewest nodes. The
    result depends only on the transactions, not on the parts in which they were read (rule 16: same chunks)."""
    nodes, labels = linked(links)
    _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    slot_of = np.zeros(len(sizes), np.int64)
    loads = [(0, slot) for slot in range(slots)]
    for number in np.argsort(-sizes, kind="stable").tolist():
        load, slot_of[number] = loads[0]
        heapq.heapreplace(loads, (load + int(sizes[number]), int(slot_of[number])))
    return Groups(nodes, slot_of[group])


@dataclass(frozen=True, slots=True)
class TableKeys:
    """What changes of a table may have in common beside their fold key. `common`: the node of all of them, None if
    there is none; `unique`: the other unique keys, each with a seed and the function of key_function; `codec`: one that
    decodes all these keys of old images."""

    codec: Codec
    common: int | None
    unique: tuple[tuple[int, FoldKey, Callable[[Sequence[Any]], object]], ...] = ()


class KeysOfTables:
    """The TableKeys of one view's tables, made when they are first needed."""

    def __init__(self, view: SchemaView) -> None:
        self._joined = _joined_tables(view)
        self._known: dict[Codec, TableKeys] = {}

    def of(self, codec: Codec) -> TableKeys:
        found = self._known.get(codec)
        if found is None:
            found = self._known[codec] = self._read(codec)
        return found

    def _read(self, codec: Codec) -> TableKeys:
        table_id, info, fold_key = codec.shape.table_id, codec.at.current, codec.layout.key
        joined = self._joined.get(table_id)
        index_of = {target.id: at for at, target in enumerate(codec.layout.targets)}
        others = [index for index in info.unique_indexes() if index.name != fold_key.name]
        keys = [_comparable(info, index, index_of) for index in others]
        if joined is not None or not codec.shape.foldable or None in keys:
            return TableKeys(codec, table_seed(table_id if joined is None else joined))
        unique = tuple(
            (crc32(b"%d" % index.id, table_seed(table_id)), key, key_function(key, codec.column_types))
            for index, key in zip(others, keys, strict=True)
            if key is not None
        )
        needed = codec.needed.union(*(key.columns for _, key, _ in unique))
        return TableKeys(codec.asking_for(needed), None, unique)


def _comparable(info: TableInfo, index: IndexInfo, index_of: dict[int, int]) -> FoldKey | None:
    """Return a unique key whose columns may be NULL; None if its values cannot be compared here."""
    columns = info.index_columns(index)
    same = tuple(one for one in (comparison(column.type) for column in columns) if one is not None)
    whole = all(part.length == UNSPECIFIED for part in index.columns)
    if not whole or len(same) < len(columns) or any(column.id not in index_of for column in columns):
        return None
    return FoldKey(index.name, tuple(index_of[column.id] for column in columns), same, "", ())


def _joined_tables(view: SchemaView) -> dict[int, int]:
    """Return the id of each table that has to do with a foreign key → the least id among those that it is joined
    with."""
    ids = sorted(view.tables)
    number_of = {(view.tables[id_].schema.lower(), view.tables[id_].name.lower()): n for n, id_ in enumerate(ids)}
    pairs: list[tuple[int, int]] = []
    for number, id_ in enumerate(ids):
        child = view.tables[id_]
        for key in foreign_keys(child.current):
            parent = number_of.get(((key.parent_schema or child.schema).lower(), key.parent.lower()))
            pairs += [] if parent is None else [(number, parent)]
    nodes = np.array(pairs, np.int64).reshape(-1)
    label = components(len(ids), nodes, np.repeat(np.arange(len(pairs)), 2))
    return {ids[number]: ids[int(label[number])] for number in set(nodes.tolist())}


@dataclass(slots=True)
class LinkCollector:
    """Collects the links of decoded rows. `common`: table id → the node that all changes of the table
    share, for the tables that have one."""

    keys: KeysOfTables
    common: dict[int, int] = field(default_factory=dict)
    _links: list[Links] = field(default_factory=list)
    _pairs: list[tuple[int, int]] = field(default_factory=list)

    def keys_of(self, codec: Codec) -> TableKeys:
        found = self.keys.of(codec)
        if found.common is not None:
            self.common[codec.shape.table_id] = found.common
        return found

    def add_changes(self, changes: Changes) -> None:
        """Add the unique values of changes beside their fold keys; old images must be whole."""
        for seed, key, _ in self.keys_of(changes.codec).unique:
            for image in (changes.old, changes.new):
                if image is None:
                    continue
                present = np.ones(len(changes), np.bool_)
                for at in key.columns:
                    present &= pc.is_valid(image[at]).to_numpy(zero_copy_only=False)
                chosen = pa.array(present)
                columns = [image[at].filter(chosen) if at in key.columns else None for at in range(len(image))]
                found = identities(key, changes.column_types, columns)
                self._links.append((hashes(found.to_pylist(), seed), changes.commit_ts[present].view(np.int64)))

    def add_row(self, row: DecodedRow) -> None:
        """Add a row's unique values beside its fold key, or, if its table does not fold, its table."""
        keys = self.keys_of(row.codec)
        if keys.common is not None and not row.codec.shape.foldable:
            self._pairs.append((keys.common, row.commit_ts))
        for seed, key, value in keys.unique:
            for image in (row.old, row.new):
                if image is not None and all(image[at] is not None for at in key.columns):
                    self._pairs.append((crc32(identity(value(image)), seed), row.commit_ts))

    def add_events(self, events: Iterable[KeyEvents]) -> None:
        """Add the fold keys, or the tables if all their changes have a node in common."""
        for some in events:
            nodes = nodes_of(some.table, some.identity, self.common)
            self._links.append((nodes, some.commit_ts.view(np.int64)))

    def links(self) -> Links:
        nodes, marks = np.array(self._pairs, np.uint64).reshape(-1, 2).view(np.int64).T
        return linked([*self._links, (nodes, marks)])


def hashes(values: Sequence[bytes], seed: int) -> Ints:
    return np.fromiter((crc32(value, seed) for value in values), np.int64, len(values))


def nodes_of(table: Ints, identity: Any, common: dict[int, int]) -> Ints:
    """Return the nodes of the fold keys of rows, or those of their tables, where these are in `common`."""
    nodes = np.empty(len(table), np.int64)
    for table_id, begin, end in tables_of(table):
        shared = common.get(table_id)
        if shared is None:
            nodes[begin:end] = hashes(identity.slice(begin, end - begin).to_pylist(), table_seed(table_id))
        else:
            nodes[begin:end] = shared
    return nodes


def packed(pairs: Links) -> bytes:
    return np.stack(pairs).tobytes()


def unpacked(data: bytes) -> Links:
    """Raises ValueError."""
    nodes, others = np.frombuffer(data, np.int64).reshape(2, -1)
    return nodes, others
