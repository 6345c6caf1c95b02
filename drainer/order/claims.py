"""Detects that two rows had a unique value at the same time within a segment, which folding hides (rule 21). Pure.

A table with secondary unique keys is written as deletes of the touched keys, then inserts. If two rows had the same
value in the middle of the segment, that is not visible then, although the destination would refuse it if the
transactions were applied one by one. So for every value it is recorded which row has it after a change, and which row
loses it. The segment must be applied one transaction after another if a row has a value while another row has it, or
loses it only after another row got it. This never happens in a stream that satisfies its unique keys, however its
values move between rows. The segment must also be applied so if a value appears and disappears within it: a row outside
the segment may have the value, which would be refused when it appears, but folding writes no row with it.

Changes are not compared with one another: an INSERT of an existing row, which TiDB does not write, is recorded as if it
replaced nothing. That can only cost time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from binlog.errors import DecodeError

from drainer.batch.work import Row
from drainer.order.key_states import TableFold
from drainer.row.claimed import OtherKey, Values, needed_of, value_function, value_row
from drainer.row.codec import Codec
from drainer.row.format import Format
from drainer.row.usual import Cells

# For one value: commit_ts, sequence, the row's key, whether the row has the value after the change or lost it, and the
# value as it is where it is compared more coarsely (else None).
Claim: TypeAlias = "tuple[int, int, object, bool, object]"
Claims: TypeAlias = "dict[object, list[Claim]]"
_COMMIT = itemgetter(0)


def two_holders(claims: Iterable[Claim]) -> bool:
    """`claims` of one value, in the order of (commit_ts, sequence)."""
    holder: object = None
    for _, group in groupby(claims, _COMMIT):
        last = {key: has for _, _, key, has, _ in group}  # only the state after a transaction matters
        for key, has in last.items():
            if has:
                continue
            if holder is not None and holder != key:
                return True
            holder = None
        for key, has in last.items():
            if has:
                if holder is not None and holder != key:
                    return True
                holder = key
    return False


def held_meanwhile(claims: Iterable[Claim]) -> bool:
    """Whether rows of the segment took a value that none of its rows had before, and none has it after the segment: no
    row is written with it, so the destination never checks whether another row has it. `claims` as above."""
    taken = False
    holder: object = None
    for _, group in groupby(claims, _COMMIT):
        first: dict[object, bool] = {}
        last: dict[object, bool] = {}
        for _, _, key, has, _ in group:
            first.setdefault(key, has)
            last[key] = has
        for key, has in last.items():
            if not has:
                if not taken and not first[key]:
                    return False  # a row had it before the segment, as the stream shows
                holder = None  # by another row than the holder: found by two_holders
        for key, has in last.items():
            if has:
                taken, holder = True, key
    return taken and holder is None


def first_holder(claims: Sequence[Claim]) -> object:
    """The key of the only row that may have the value before the first of `claims`: the row that first gives it up,
    else one that gives it up finally, else the row that has it afterwards. `claims` of one value, in order."""
    own = [claim for claim in claims if claim[0] == claims[0][0]]
    first, last = {key: has for _, _, key, has, _ in reversed(own)}, {key: has for _, _, key, has, _ in own}
    began = [key for _, _, key, has, _ in own if not has and not first[key]]
    lost = [key for _, _, key, has, _ in own if not has and not last[key]]
    return [*began, *lost, own[0][2]][0]


class ClaimedFold(TableFold):
    """A table's fold that also records which rows take and give up the values of its other unique keys."""

    __slots__ = ("_readers", "claims", "forms", "keys")

    def __init__(self, codec: Codec, format_: Format, keys: tuple[OtherKey, ...]) -> None:
        super().__init__(codec, format_)
        self.keys = keys
        self.forms = codec.forms
        self.claims: tuple[Claims, ...] = tuple({} for _ in keys)
        # Of each codec one that asks for the values, too, and what finds them in a row.
        self._readers: dict[Codec, tuple[Codec, Callable[[Cells], Values]]] = {}

    def value_row(self, number: int, value: object) -> Row:
        """A value of key `number`, compared or unchanged, in the destination's format."""
        return value_row(self._format, self.forms, self.keys[number], value)

    def hides_conflict(self) -> bool:
        """Whether the folded changes hide a conflict. Call after all changes were added in order."""
        return any(
            len(claims) > 1 and (two_holders(claims) or held_meanwhile(claims))
            for table in self.claims
            for claims in table.values()
        )

    def insert(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        reader, values_of = self._readers.get(codec) or self._reader(codec)
        cells = reader.insert(b, at, end, commit_ts)
        key = codec.key(cells, commit_ts)
        self._put(key, codec, cells, commit_ts, sequence)
        self._note(self._values(reader, values_of, cells, commit_ts), key, True, commit_ts, sequence)

    def update(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        reader, values_of = self._readers.get(codec) or self._reader(codec)
        old, new = reader.update(b, at, end, commit_ts)
        old_key, key = codec.key(old, commit_ts), codec.key(new, commit_ts)
        self._change(old_key, key, codec, old, new, commit_ts, sequence)
        lost = self._values(reader, values_of, old, commit_ts)
        values = self._values(reader, values_of, new, commit_ts)
        if lost != values or old_key != key:
            self._note(lost, old_key, False, commit_ts, sequence)
        self._note(values, key, True, commit_ts, sequence)

    def delete(self, codec: Codec, b: bytes, at: int, end: int, commit_ts: int, sequence: int) -> None:
        reader, values_of = self._readers.get(codec) or self._reader(codec)
        cells = reader.delete(b, at, end, commit_ts)
        key = codec.key(cells, commit_ts)
        self._remove(key, codec, cells, commit_ts, sequence)
        self._note(self._values(reader, values_of, cells, commit_ts), key, False, commit_ts, sequence)

    def _values(self, codec: Codec, values_of: Callable[[Cells], Values], cells: Cells, commit_ts: int) -> Values:
        try:
            return values_of(cells)
        except DecodeError as error:
            codec.fail(error, commit_ts)

    def _note(self, values: Values, key: object, has: bool, commit_ts: int, sequence: int) -> None:
        for number, value in enumerate(values):
            if value is None:
                continue
            as_is = None
            if self.keys[number].is_coarse:
                value, as_is = value  # type: ignore[misc]
            claim = (commit_ts, sequence, key, has, as_is)
            known = self.claims[number].get(value)
            if known is None:
                self.claims[number][value] = [claim]
            else:
                known.append(claim)

    def _reader(self, codec: Codec) -> tuple[Codec, Callable[[Cells], Values]]:
        needed = needed_of(codec.shape.key, self.keys)
        found = self._readers[codec] = codec.asking_for(needed), value_function(self.keys, codec.forms)
        return found
