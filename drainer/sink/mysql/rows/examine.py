"""Finds rows of the destination that conflict with unique values of a batch, before the batch is started (rule 21).
Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from drainer.batch.work import Probe
from drainer.sink.mysql import connection_pool
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, Session
from drainer.sink.mysql.rows.statements import qualified, quote
from drainer.sink.mysql.rows.unique_keys import UniqueKey, read
from drainer.sink.retry import Patience

_IDLE_S: Final = 120
_VALUES_MAX: Final = 200
_BYTES_MAX: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class MySQLExaminer:
    """See base.Examiner."""

    config: ServerConfig

    def conflict(self, probes: Sequence[Probe]) -> str:
        if not probes:
            return ""
        patience = Patience(f"looking for rows in the way in {self.config.address}", self.config.retry_for_s)
        session: Session | None = None
        try:
            while True:
                try:
                    if session is None:
                        config = self.config
                        session = connection_pool.take(config, idle_s=_IDLE_S, read_timeout_s=config.read_timeout_s)
                    found = _asked(session, probes)
                    patience.over()
                    connection_pool.give_back(self.config, session)
                    session = None
                    return found
                except Retry as error:
                    patience.failed(error)
                except ConnectionLost as error:
                    if session is not None:
                        session.close()
                        session = None
                    patience.failed(error)
        finally:
            if session is not None:
                session.close()


def _asked(session: Session, probes: Sequence[Probe]) -> str:
    for (shape, places), group in groupby(probes, key=attrgetter("shape", "places")):
        table = f"{shape.schema}.{shape.table}"
        names = [shape.columns[at] for at in places]
        there = read(session, shape.schema, shape.table)
        if there is not None and not refuses(there[0], names):
            continue
        columns = ",".join(names)
        for question in questions(list(group)):
            try:
                rows = session.query(question.quick()) and session.query(question.exact())
            except ServerError as error:  # no such table or column: writing the rows will raise the error
                return f"{table}: {error}"
            if rows:
                value = ",".join(str(cell) for cell in rows[0])[:200]
                return f"{table}: another row holds the value ({value}) of ({columns})"
    return ""


@dataclass(frozen=True, slots=True)
class Question:
    """Asks whether a row has one of `values`, except the row that may have it, given by `pairs`. `head`: the statement
    up to the values; `both`: the columns of a pair."""

    head: bytes
    both: bytes
    values: tuple[bytes, ...]
    pairs: tuple[bytes, ...]

    def quick(self) -> bytes:
        """A quick question: the server finds values by their index and pairs in a sorted list; the same with AND and OR
        would take longer than writing the rows. It may return rows that do not match: in a list of several pairs
        MariaDB compares text of another character set than the statement's byte for byte."""
        return self._asking(b"(" + self.both + b") NOT IN (" + b",".join(self.pairs) + b")")

    def exact(self) -> bytes:
        equal = b" OR ".join([b"(" + self.both + b")=" + pair for pair in self.pairs])
        return self._asking(b"NOT (" + equal + b")")

    def _asking(self, other: bytes) -> bytes:
        return self.head + b",".join(self.values) + b") AND " + other + b" LIMIT 1"


def refuses(keys: Sequence[UniqueKey], columns: Sequence[str]) -> bool:
    """Whether a table with these unique keys refuses a second row with the same value in these columns. If not, there
    is no conflict, and without a key the server would read the whole table for every question. Pure."""
    within = {name.lower() for name in columns}
    return any({part.column.lower() for part in key.parts} <= within for key in keys)


def questions(probes: Sequence[Probe]) -> Iterator[Question]:
    """Statements of bounded size. `probes`: of one unique key. Pure."""
    shape, places = probes[0].shape, probes[0].places
    value = b",".join(quote(shape.columns[at]) for at in places)
    both = b",".join(quote(shape.columns[at]) for at in (*places, *shape.key))
    head = b"SELECT " + value + b" FROM " + qualified(shape.schema, shape.table) + b" WHERE (" + value + b") IN ("
    values: list[bytes] = []
    pairs: list[bytes] = []
    size = 0
    for probe in probes:
        key = _tuple(probe.key)
        for one in map(_tuple, probe.values):
            values.append(one)
            pairs.append(one[:-1] + b"," + key[1:])
            size += len(one) + len(pairs[-1])
            if len(values) >= _VALUES_MAX or size >= _BYTES_MAX:
                yield Question(head, both, tuple(values), tuple(pairs))
                values, pairs, size = [], [], 0
    if values:
        yield Question(head, both, tuple(values), tuple(pairs))


def _tuple(row: object) -> bytes:
    if not isinstance(row, bytes):
        raise TypeError(f"a value for MySQL must be the bytes of a tuple, not {type(row).__name__}")
    return row
