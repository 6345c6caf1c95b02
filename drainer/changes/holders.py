"""Find which row holds each value of a unique key after each transaction. The rules are those of drainer.order.claims,
computed for all values together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.changes.claims import Claims
from drainer.changes.key import joined_keys
from drainer.changes.vector import Ints, Mask, Words


def codes_of(blocks: Sequence[Sequence[Any]]) -> Ints:
    """Return a number, from 0 on, for each value of some blocks. Equal values get equal numbers. A block has columns as
    compared, without NULLs; a column may be signed in one block and unsigned in another."""
    same_types = all([c.type for c in one] == [c.type for c in blocks[0]] for one in blocks)
    single = same_types and len(blocks[0]) == 1
    coded = pa.chunked_array([one[0] if single else joined_keys(one).identity for one in blocks]).dictionary_encode()
    return np.concatenate([chunk.indices.to_numpy() for chunk in coded.chunks]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class NetClaims:
    """One claim for each (value, commit_ts, key): whether the row has the value after that transaction. Sorted by value
    and commit_ts; within those first the rows that lost the value, then those that have it, by their first claims.

    Arrays of one length. `begins`: whether the claim is the first of its value; `first`, `has`: whether the row had the
    value after its first and after its last claim of the transaction; `at`: index of its first claim among the given
    claims; `first_claim`, `first_loss`: index of its first claim, and of the first by which it lost the value, in
    sorted order (beyond the last index if it lost none)."""

    value: Ints
    begins: Mask
    commit_ts: Words
    key: Ints
    first: Mask
    has: Mask
    at: Ints
    first_claim: Ints
    first_loss: Ints

    def __len__(self) -> int:
        return len(self.value)


def net_claims(value: Ints, key: Ints, commit_ts: Words, has: Mask, place: Sequence[Any]) -> NetClaims:
    """Compute the net claims. `value`, `key`: a number for each. `place`: arrays by which claims of one commit_ts are
    ordered, the least important first. A change loses values before it gains others, so `has` is one of these arrays.
    """
    order = np.lexsort((*place, commit_ts, value))
    value, key, commit_ts, has = value[order], key[order], commit_ts[order], has[order]
    by_key = np.lexsort((key, commit_ts, value))  # stable, so that claims of one key stay in order
    own = _begins(value[by_key], commit_ts[by_key], key[by_key])
    starts = np.flatnonzero(own)
    ends = np.append(starts[1:], len(by_key)) - 1
    head, last = by_key[starts], by_key[ends]
    lost = np.full(len(order), len(order))
    lost[~has] = np.flatnonzero(~has)
    first_lost = np.minimum.reduceat(lost[by_key], starts)
    ordered = np.lexsort((head, has[last], commit_ts[head], value[head]))
    head, last, first_lost = head[ordered], last[ordered], first_lost[ordered]
    return NetClaims(
        value[head],
        _begins(value[head]),
        commit_ts[head],
        key[head],
        has[head],
        has[last],
        order[head],
        head,
        first_lost,
    )


def _begins(*columns: Any) -> Mask:
    """Return where any of the arrays differs from its element before."""
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def two_holders(found: NetClaims) -> Mask:
    """Return the net claims by which a row gains or loses a value while another row has it."""
    conflict = np.zeros(len(found), np.bool_)
    conflict[1:] = ~found.begins[1:] & found.has[:-1] & (found.key[1:] != found.key[:-1])
    return conflict


def held_meanwhile(found: NetClaims) -> bool:
    """Return whether rows gained a value that none of them had before, and none of them has it after its last claim."""
    if not len(found):
        return False
    of = np.cumsum(found.begins) - 1
    starts = np.flatnonzero(found.begins)
    ends = np.append(starts[1:], len(found)) - 1
    place = np.arange(len(found))
    taken = np.minimum.reduceat(np.where(found.has, place, len(found)), starts)
    had_before = ~found.has & ~found.first & (place < taken[of])
    known = np.logical_or.reduceat(had_before, starts)
    return bool(((taken < len(found)) & ~known & ~found.has[ends]).any())


def first_holders(found: NetClaims) -> Ints:
    """Return for each value, in order, the index of the net claim of the only row that may hold the value before its
    first claim. Among the rows of the value's first commit_ts this is the row that begins with losing it, else a row
    that loses it for good, else the first row."""
    starts = np.flatnonzero(found.begins)
    of = np.cumsum(found.begins) - 1
    own = found.commit_ts == found.commit_ts[starts][of]
    kind = np.where(~found.first, 0, np.where(~found.has, 1, 2))
    place = np.where(kind == 1, found.first_loss, found.first_claim)
    order = np.lexsort((place, kind, ~own, of))
    first: Ints = order[starts]
    return first


def contended(value: Ints) -> Mask:
    """Return where a value has several claims; no rule applies to a value with a single claim. `value`: as `codes_of`
    returns them.
    """
    found: Mask = (np.bincount(value) > 1)[value]
    return found


def hides_conflict(blocks: Sequence[Claims]) -> bool:
    """Return whether folding hides that a value had two holders, or writes nothing for a value that was gained and lost
    again. `blocks`: all claims on one unique key."""
    if not blocks:
        return False
    value = codes_of([one.value for one in blocks])
    several = contended(value)
    if not several.any():
        return False
    begins = np.cumsum([0, *map(len, blocks)])
    some = [one.take(np.flatnonzero(several[at : at + len(one)])) for at, one in zip(begins, blocks, strict=False)]
    key = codes_of([one.key for one in some])
    commit_ts, start_ts, sequence, has = (
        np.concatenate([getattr(one, name) for one in some]) for name in ("commit_ts", "start_ts", "sequence", "has")
    )
    found = net_claims(value[several], key, commit_ts, has, (has, sequence, start_ts))
    return bool(two_holders(found).any()) or held_meanwhile(found)
