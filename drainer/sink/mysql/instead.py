"""What runs when a server refuses a DDL's text because it cannot read it or has no such thing. Pure.

a table        the same, said from its TableInfo before and after (drainer.schema.reword)
a view         without its DEFINER, for whom only a privileged user may speak; then nothing, for views hold no rows
EXCHANGE       the rows change places by copying them

And what never runs as it is written, because the server would take other rows: by_row, why_not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionType

from drainer.ddl.lexer import quoted, tokens
from drainer.row.layout import replicated
from drainer.schema.reword import reworded
from drainer.sink.mysql.partitions import emptied, null_partition, rows_of
from drainer.sink.mysql.rewrite import Defaults, Dialect, rewrite
from drainer.step import Ddl, Located

# A word, type, character set or option that is not known, or known but not there; a foreign key without an index to
# refer to, an index too long for a ROW_FORMAT, and a counter without a key, all of which TiDB takes.
_CANNOT_SAY: Final = (
    *(1005, 1031, 1064, 1071, 1075, 1115, 1210, 1215, 1235, 1273, 1286, 1305, 1478, 1492, 1709),
    *(1822, 1826, 1845, 1846, 1901, 1903, 1907, 1911, 1912, 3105, 3106, 3780, 4161),
)
# Tables that differ in more than their rows, rows that do not belong into the partition, foreign keys.
_CANNOT_EXCHANGE: Final = (1064, 1731, 1732, 1733, 1734, 1735, 1736, 1737, 1740)
_NOT_ALLOWED: Final = (1227,)
_BY_PARTITION: Final = frozenset({ActionType.TRUNCATE_TABLE_PARTITION, ActionType.EXCHANGE_TABLE_PARTITION})


@dataclass(frozen=True, slots=True)
class Instead:
    """Statements that run in place of all others when one fails with one of `codes`; `tables`: their own."""

    sql: tuple[str, ...]
    codes: tuple[int, ...]
    tables: tuple[tuple[str, str], ...] = ()


def instead(step: Ddl, sql: tuple[str, ...], dialect: Dialect) -> Instead | None:
    """None where nothing else can be said: an operator's text, a TiDB, several statements."""
    if step.rewritten or dialect.flavour == "tidb" or len(sql) != 1:
        return None
    if step.job.type == ActionType.CREATE_VIEW:
        return Instead((_undefined(sql[0]),), _NOT_ALLOWED)
    if step.job.type == ActionType.EXCHANGE_TABLE_PARTITION:
        return _copied(step)
    said = in_other_words(step, dialect)
    return None if said is None else Instead(said, _CANNOT_SAY)


def by_row(step: Ddl, dialect: Dialect) -> Instead | None:
    """What runs in place of a DDL on a partition that holds other rows here than upstream (partitions.py)."""
    if step.rewritten or dialect.flavour == "tidb":
        return None
    if step.job.type == ActionType.EXCHANGE_TABLE_PARTITION:
        return _copied(step, always=False)
    said = emptied(step)
    return None if said is None else Instead(said, ())


def why_not(step: Ddl, flavour: str) -> str:
    """Why a job must not run here although the server would take its text, '' when it may."""
    if step.rewritten:
        return ""
    if step.job.type == ActionType.FLASHBACK_CLUSTER:
        return "no destination goes back to another time: load it anew from upstream"
    parted = next((c.before.info.partition for c in step.changes if c.before and c.before.info.partition), None)
    if step.job.type in _BY_PARTITION and flavour != "tidb" and parted and parted.type == PartitionType.KEY:
        return "the partitions of a table PARTITION BY KEY hold other rows here than in TiDB, whose hash is another"
    return ""


def in_other_words(step: Ddl, dialect: Dialect) -> tuple[str, ...] | None:
    """The job from its TableInfos, in the destination's dialect; None where that cannot be said."""
    said = reworded(step)
    if said is None:
        return None
    return tuple(text for words in said if (text := rewrite(words, Defaults(), dialect).sql))


def _undefined(sql: str) -> str:
    """The view for whoever looks, with that one's rights: never with more than the DEFINER had."""
    words = list(tokens(sql))
    view = next((at for at, word in enumerate(words) if word.is_word("VIEW")), None)
    if view is None:
        return sql
    return f"CREATE OR REPLACE SQL SECURITY INVOKER {sql[words[view].start :]}"


def _copied(step: Ddl, *, always: bool = True) -> Instead | None:
    """An EXCHANGE PARTITION by copying rows. Not `always`: only where the server's own would take other rows."""
    changes = step.changes
    if len(changes) != 2 or any(c.before is None or c.after is None for c in changes):
        return None
    parted, normal, after = changes[0].before, changes[1].before, changes[1].after
    assert parted is not None and normal is not None and after is not None
    definitions = parted.info.partition.definitions if parted.info.partition else ()
    number = next((n for n, d in enumerate(definitions) if d.id == after.table_id), None)
    if number is None or not (always or number in _disputed(parted)):
        return None
    return _exchange(step.job.id, parted, rows_of(parted, number), normal)


def _disputed(parted: Located) -> tuple[int, ...]:
    elsewhere = null_partition(parted.info)
    return () if elsewhere is None else (0, elsewhere)


def _exchange(job_id: int, parted: Located, rows: tuple[str, ...], normal: Located) -> Instead:
    """Through a table beside the normal one, which takes its place in one RENAME. `rows`: of the partition."""
    schema = normal.schema
    arriving, leaving = (f"tidb_binlog_exchange_{job_id}_{way}" for way in ("in", "out"))
    into, out, here = quoted(schema, arriving), quoted(schema, leaving), quoted(schema, normal.name)
    names = ", ".join(quoted(column.name) for column in replicated(normal.info))
    sql = (
        f"DROP TABLE IF EXISTS {into}",
        f"CREATE TABLE {into} LIKE {here}",
        *(f"INSERT INTO {into} ({names}) SELECT {names} FROM {some}" for some in rows),
        *(f"DELETE FROM {some}" for some in rows),
        f"INSERT INTO {quoted(parted.schema, parted.name)} ({names}) SELECT {names} FROM {here}",
        f"RENAME TABLE {here} TO {out}, {into} TO {here}",
        f"DROP TABLE IF EXISTS {out}",
    )
    return Instead(sql, _CANNOT_EXCHANGE, ((schema, arriving), (schema, leaving)))
