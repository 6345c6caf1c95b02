"""Find, from all claims on the values of one unique key, either a conflict among the claims or the questions that the
destination must answer (rule 21). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.batch.work import Key, Probe, TableShape
from drainer.changes.claims import Claims, concat_claims
from drainer.changes.holders import codes_of, contended, first_holders, net_claims, two_holders
from drainer.changes.vector import Ints, Mask
from drainer.order.probes import Questions, two_rows
from drainer.row.family import Family
from drainer.row.format import Format


def questions_of(
    shape: TableShape,
    places: tuple[int, ...],
    families: Sequence[Family],
    key_families: Sequence[Family],
    blocks: Sequence[Claims],
    format_: Format,
) -> Questions:
    """Return the conflict or the questions. `blocks`: every claim on values of the unique key whose columns are at
    `places`. `families`: those of these columns; `key_families`: those of the columns of the key by which rows are
    folded."""
    blocks = concat_claims(blocks)
    value = codes_of([one.value for one in blocks])
    has = np.concatenate([one.has for one in blocks])
    holder = np.arange(len(value))  # for each value, the claim whose row may hold the value first
    several = contended(value)
    if several.any():
        own = _contended_holders(blocks, value, has, np.flatnonzero(several))
        if own is None:
            return Questions(two_rows(shape, places), ())
        first = np.empty(int(value.max()) + 1, np.int64)
        first[value] = holder
        first[value[own]] = own
        holder = first[value]
    taken = np.flatnonzero(has)
    is_coarse = blocks[0].shown is not None
    if not is_coarse:  # all claims of a value show the same text
        taken = taken[np.sort(np.unique(value[taken], return_index=True)[1])] if several.any() else taken
    shown = _texts(blocks, taken, families, lambda one: one.value if one.shown is None else one.shown, format_)
    keys = _texts(blocks, holder[taken], key_families, lambda one: one.key, format_)
    if not is_coarse:
        return Questions("", tuple([Probe(shape, places, (text,), key) for text, key in zip(shown, keys, strict=True)]))
    several_texts: dict[int, tuple[dict[Key, None], Key]] = {}
    for number, text, key in zip(value[taken].tolist(), shown, keys, strict=True):
        several_texts.setdefault(number, ({}, key))[0][text] = None
    return Questions("", tuple([Probe(shape, places, tuple(texts), key) for texts, key in several_texts.values()]))


def _contended_holders(blocks: Sequence[Claims], value: Ints, has: Mask, chosen: Ints) -> Ints | None:
    """Return, for each value with several claims, the claim of the row that may hold the value before all of them. None
    if a value had two holders. `chosen`: these claims."""
    some = [one.take(of) for one, of in _by_block(blocks, chosen)]
    key = codes_of([one.key for one in some])
    commit_ts, start_ts, sequence = (
        np.concatenate([getattr(one, name) for one in some]) for name in ("commit_ts", "start_ts", "sequence")
    )
    has = has[chosen]
    # As in order.probes: claims noted row by row do not tell two transactions of one commit_ts apart.
    found = net_claims(value[chosen], key, commit_ts, has, (start_ts, has, sequence))
    if two_holders(found).any():
        return None
    return chosen[found.at[first_holders(found)]]


def _by_block(blocks: Sequence[Claims], chosen: Ints) -> list[tuple[Claims, Ints]]:
    """Yield the blocks, each with its own indexes among `chosen`, which must ascend."""
    ends = np.cumsum([len(one) for one in blocks])
    cuts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    return [(one, cut - (end - len(one))) for one, cut, end in zip(blocks, cuts, ends, strict=True)]


def _texts(
    blocks: Sequence[Claims],
    chosen: Ints,
    families: Sequence[Family],
    image: Callable[[Claims], Sequence[Any]],
    format_: Format,
) -> list[Key]:
    """Return the values or keys of some claims as the destination compares them, in the order of `chosen`."""
    order = np.argsort(chosen, kind="stable")
    found: list[Key] = []
    for one, of in _by_block(blocks, chosen[order]):
        places = pa.array(of)
        found += format_.compared_keys(families, [column.take(places) for column in image(one)])
    if (np.diff(order) == 1).all():
        return found
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return [found[at] for at in back.tolist()]
