"""A MySQL, MariaDB or TiDB server as a destination: reads from top to bottom as drainer/sink/base.py does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from binlog.runtime.log import get_logger

from drainer.batch.work import Pieces, SegmentWork
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    NO_QUESTION,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    TableLoad,
    TableName,
    Wants,
)
from drainer.sink.errors import DestinationDown, DestinationRefused, MissingRows, PositionMoved, RowsRefused
from drainer.sink.mysql import position
from drainer.sink.mysql.config import MySQLSection, ServerConfig
from drainer.sink.mysql.connection import ServerError, ServerSession, report_tls
from drainer.sink.mysql.ddl import recycle_plan
from drainer.sink.mysql.ddl.recycle_plan import RecycleBin
from drainer.sink.mysql.ddl.runner import BackgroundIndexes, DdlRunner
from drainer.sink.mysql.fenced_session import Driver
from drainer.sink.mysql.position import Changefeed
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.mysql.rows.slot_writer import MySQLSlotWriter, Phase, phase_of
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import (
    Name,
    UniqueSurprise,
    Writer,
    report_loading,
    tables_there,
    tables_with_triggers,
)
from drainer.sink.mysql.snapshot import ServerSnapshot
from drainer.sink.position import Stored
from drainer.sink.settings import SyncerSettings

# Limits of a server that a large transaction may pass, and what an operator can do about each.
# By error number: MySQL's and MariaDB's, TiDB's from 8000 on.
_SETTINGS: Final[Mapping[int, str]] = {
    1197: "max_binlog_cache_size",
    1206: "innodb_buffer_pool_size, which holds its locks",
    8004: "txn-total-size-limit",
    8025: "txn-entry-size-limit",
    8175: "tidb_mem_quota_query",
    8176: "tidb_server_memory_limit",
}


@contextlib.contextmanager
def explained(address: str, commit_ts: int) -> Iterator[None]:
    """Turns the server's refusal of a whole transaction into an error that names the transaction and the setting."""
    try:
        yield
    except (ServerError, RowsRefused) as error:
        refused = error if isinstance(error, ServerError) else error.__cause__
        if not isinstance(refused, ServerError) or refused.code not in _SETTINGS:
            raise
        raise DestinationRefused(
            f"{address}: the transaction of commit_ts {commit_ts} is too large for this server, raise "
            f"{_SETTINGS[refused.code]} there: {refused.detail}"
        ) from error


_log = get_logger(__name__)

_CLOSE_WAIT_S: Final = 5.0


def make(to: MySQLSection, syncer: SyncerSettings) -> MySQLSink:
    return MySQLSink(to.server(syncer))


class MySQLSink:
    """See base.NetSink, ParallelSink, LoadsOnExecutors and BuildsIndexes, and snapshot.ReadsTables. Closed until
    `open`, then ready; between `begin` and the last `commit` a range is open."""

    wants: Final = Wants.NET
    format: Final = SQL_TEXT

    def __init__(self, config: ServerConfig) -> None:
        self.name = f"mysql://{config.user}@{config.address}"
        self.retry_for_s = config.retry_for_s
        self._config = config
        self._stop = threading.Event()
        self._driver: Driver | None = None
        self._ddl: DdlRunner | None = None
        self._bin: RecycleBin | None = None
        self._background: BackgroundIndexes | None = None
        self.commit_ts = 0
        self._schema_version = 0
        self._checkpoint_due_s = 0.0
        self._triggers: frozenset[Name] = frozenset()
        self._keys = UniqueKeys(tell=True)
        self._missing = MissingRows()

    @property
    def parallel(self) -> MySQLSink:
        return self

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        report_tls(self._config)
        driver = self._driver = Driver(self._config, identity, self._stop)
        missing = driver.start(lambda session: self._take(session, initial_ts, first))
        bin_ = self._bin = RecycleBin(self._config, identity)
        background = self._background = BackgroundIndexes(self._config, driver, self._stop)
        runner = self._ddl = DdlRunner(driver, bin_, background)
        driver.patiently("settling DDL", lambda session: runner.settle())
        stored = driver.patiently("position", lambda session: driver.store(session).read())
        if stored is None:
            raise PositionMoved(f"{driver.changefeed.label}: its row is gone from drainer_position")
        driver.patiently("recycle bin", bin_.read)
        self._moved(stored.commit_ts, stored.schema_version)
        return Position(
            stored.commit_ts,
            stored.schema_version,
            stored.intent,
            missing is not None,
            missing or (),
            tuple(self.loads()),
            tuple(driver.patiently("verifications", lambda session: driver.store(session).verifications())),
        )

    def _take(self, session: ServerSession, initial_ts: int, first: FirstStart) -> tuple[TableName, ...] | None:
        """Create the position if there is none, and take its epoch. Return None if there was one, else the tables of
        `first` that are missing."""
        driver = self._open()
        if self._config.channel_id is not None:
            position.create_mark_table(session)
        report_loading(session, wanted=self._config.load_data == "auto")
        if not self._config.allow_triggers:
            self._triggers = tables_with_triggers(session)
        found = driver.store(session).read()
        missing: tuple[TableName, ...] | None = None
        if found is None:
            missing = first.missing(tables_there(session, first.tables))
            found = self._first_position(session, first.begin_ts(initial_ts, missing), first)
        driver.epoch = driver.store(session).take_epoch(found.epoch, driver.identity.node_id)
        return missing

    def _first_position(self, session: ServerSession, initial_ts: int, first: FirstStart) -> Stored:
        """Return the position at which the original's drainer stopped, if it wrote to this destination; else the
        configured start (rule 17)."""
        changefeed = self._open().changefeed
        checkpoint = position.read_checkpoint(session, changefeed)
        if checkpoint:
            _log.info(
                "continuing from the checkpoint of the original drainer",
                commit_ts=checkpoint[0],
                consistent=checkpoint[2],
            )
        commit_ts, schema_version = (checkpoint[0], checkpoint[1]) if checkpoint else (initial_ts, 0)
        store = self._open().store(session)
        store.create(commit_ts or initial_ts, schema_version, loads=first.loads and checkpoint is None)
        stored = store.read()
        if stored is None:
            raise DestinationRefused(f"{changefeed.label}: a row written to drainer_position cannot be read back")
        return stored

    def apply(self, work: SegmentWork, schema_version: int) -> None:
        one = Pieces(work.after_ts, work.until_ts, lambda: (work,))
        self._applied(one, schema_version, alone=work.commits <= 1)

    def apply_pieces(self, pieces: Pieces[SegmentWork], schema_version: int) -> None:
        with explained(self._config.address, pieces.until_ts):
            self._applied(pieces, schema_version, alone=True)

    def _applied(self, pieces: Pieces[SegmentWork], schema_version: int, *, alone: bool) -> None:
        """`alone`: this is one upstream transaction; of several each may go in one by one, or another be refused
        (rule 21)."""
        try:
            self._apply(pieces, schema_version, thorough=False)
        except UniqueSurprise:
            if not alone:
                raise
            self._apply(pieces, schema_version, thorough=True)

    def _apply(self, pieces: Pieces[SegmentWork], schema_version: int, *, thorough: bool) -> None:
        driver = self._ready()
        checkpoint = self._checkpoint_is_due()

        def body(session: ServerSession) -> None:
            if not driver.joined:
                self._fence(session, pieces.after_ts, pieces.until_ts, schema_version, checkpoint)
            if pieces.loaded is not None and not driver.store(session).step_load(*pieces.loaded):
                return  # the answer to an earlier attempt was lost
            if driver.joined:  # it shares the position, whose lock would let one task write at a time (rule 36)
                driver.store(session).expect(epoch=driver.epoch, commit_ts=pieces.after_ts)
            writer = Writer(
                session,
                self._config.limits,
                until_ts=pieces.until_ts,
                keys=self._keys,
                triggers=self._triggers,
                missing=self._missing,
            )
            if thorough:  # a row of one piece may be in the way of one in an earlier piece
                for work in pieces.works():
                    for folded in work.folded:
                        writer.clear(folded)
            marked = False
            for work in pieces.works():
                if work.change_count and not marked:
                    driver.mark(session)
                    marked = True
                writer.write(work, thorough=thorough)

        driver.transact(
            f"rows of ({pieces.after_ts}, {pieces.until_ts}]",
            body,
            lambda stored: stored.commit_ts == pieces.until_ts and pieces.until_ts != pieces.after_ts,
        )
        self._moved(pieces.until_ts, schema_version)

    def advance(self, commit_ts: int, schema_version: int) -> None:
        if commit_ts == self.commit_ts:
            return
        after_ts, checkpoint = self.commit_ts, self._checkpoint_is_due()
        self._ready().transact(
            f"position {commit_ts}",
            lambda session: self._fence(session, after_ts, commit_ts, schema_version, checkpoint),
            lambda stored: stored.commit_ts == commit_ts,
        )
        self._moved(commit_ts, schema_version)

    def prepare(self, view: SchemaView) -> None:
        """Nothing depends on the tables."""

    def begin(self, intent: Intent) -> MySQLSlotWriter:
        driver = self._ready()
        stored = driver.patiently("open range", lambda session: driver.store(session).read())
        phase = Phase.DIRECT
        if stored is not None and stored.intent is not None:
            if stored.intent != intent:
                raise PositionMoved(
                    f"{driver.changefeed.label}: range {stored.intent} is open and must be finished as it was cut, "
                    f"not {intent}"
                )
            phase = phase_of(stored, driver.changefeed.label)
        return self._open_phase(intent, phase)

    def _open_phase(self, intent: Intent, phase: Phase) -> MySQLSlotWriter:
        driver = self._open()

        def body(session: ServerSession) -> None:
            store = driver.store(session)
            store.write_intent(epoch=driver.epoch, intent=intent, stage=phase)
            store.open_chunks(epoch=driver.epoch, intent=intent, stage=phase)

        driver.transact(f"intent {intent} {phase}", body)
        return MySQLSlotWriter(self._config, driver.changefeed, driver.epoch, intent, phase, self._triggers)

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> MySQLSlotWriter | None:
        """A receipt's `detail` names the table and key that stopped the phase DIRECT."""
        driver = self._open()
        stored = driver.patiently("open range", lambda session: driver.store(session).read())
        phase = phase_of(stored, driver.changefeed.label) if stored and stored.intent else Phase.DIRECT
        if phase is Phase.DIRECT and any(receipt.detail for receipt in receipts):
            return self._open_phase(intent, Phase.DELETE)
        if phase is Phase.DELETE:
            return self._open_phase(intent, Phase.INSERT)
        self._finish(intent, schema_version)
        return None

    def _finish(self, intent: Intent, schema_version: int) -> None:
        """Move the position to intent.until_ts, close the intent and throw its marks away, in one transaction."""
        driver = self._open()
        checkpoint = self._checkpoint_is_due()

        def body(session: ServerSession) -> None:
            store = driver.store(session)
            stored = store.read()
            # Slots that met a surprise end DIRECT early; then DELETE and INSERT must be complete.
            phases = (Phase.DIRECT,) if stored and stored.stage == Phase.DIRECT else (Phase.DELETE, Phase.INSERT)
            for phase in phases:
                left = store.unfinished(intent=intent, stage=phase)
                if left:
                    raise PositionMoved(f"{driver.changefeed.label}: slots {left} of {intent} are not complete")
            store.clear_intent(epoch=driver.epoch, intent=intent, schema_version=schema_version)
            store.purge_chunks(intent)
            if checkpoint:
                self._checkpoint(session, intent.until_ts, schema_version, consistent=False)

        driver.transact(
            f"end of {intent}",
            body,
            lambda stored: stored.commit_ts == intent.until_ts and stored.intent is None,
        )
        self._moved(intent.until_ts, schema_version)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        assert self._ddl is not None and self._bin is not None, "open() comes first"
        self._keys.forget()
        self._ddl.run(step, may_exist=may_exist)
        if recycle_plan.concerns(step):
            self._open().patiently("recycle bin", self._bin.read)
        self._moved(step.commit_ts, step.job.schema_version)

    def loads(self) -> list[TableLoad]:
        driver = self._open()
        return driver.patiently("loads", lambda session: driver.store(session).loads())

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        driver = self._ready()
        driver.transact("loads", lambda session: driver.store(session).put_loads(driver.epoch, loads, done))

    def for_tasks(self) -> Callable[[], MySQLSink]:
        driver = self._open()
        beside = driver.changefeed, driver.epoch
        return partial(MySQLSink.joined, self._config, driver.identity, beside, self.commit_ts, self._triggers)

    @classmethod
    def joined(
        cls,
        config: ServerConfig,
        identity: Identity,
        beside: tuple[Changefeed, int],
        commit_ts: int,
        triggers: frozenset[Name],
    ) -> MySQLSink:
        """Return a sink that loads ranges at the position of the one that has opened the destination. `beside`: that
        one's changefeed and epoch."""
        sink = cls(config)
        sink._driver = Driver(config, identity, sink._stop, beside)
        sink.commit_ts, sink._triggers = commit_ts, triggers
        return sink

    def job_done(self, job_id: int) -> bool:
        assert self._ddl is not None, "open() comes first"
        return self._ddl.is_done(job_id)

    def close(self, *, clean: bool) -> None:
        driver = self._driver
        if driver is None:
            return
        if clean:
            if self._background is not None:
                self._background.leave(_CLOSE_WAIT_S)
            self._say_consistent(driver)
        driver.close()
        self._driver = None
        if clean and self._background is not None:
            self._background.check()  # no later operation would raise the error

    def interrupt(self) -> None:
        self._stop.set()

    def _say_consistent(self, driver: Driver) -> None:
        """For upstream's tools alone, so a server that is down does not hold up the end."""
        try:
            driver.transact(
                "checkpoint at the end",
                lambda session: self._checkpoint(session, self.commit_ts, self._schema_version, consistent=True),
                wait_s=_CLOSE_WAIT_S,
            )
        except DestinationDown as error:
            _log.warning("cannot mark the checkpoint table as consistent", error=str(error))

    def snapshot(self, identity: Identity) -> ServerSnapshot:
        return ServerSnapshot(self._config, identity)

    def building(self) -> list[str]:
        return [] if self._background is None else self._background.building()

    def _ready(self) -> Driver:
        """Return the driver. Raises the error of an index that is built beside the stream."""
        driver = self._open()
        if self._background is not None:
            self._background.check()
        return driver

    def _open(self) -> Driver:
        assert self._driver is not None, "open() comes first"
        return self._driver

    def _fence(
        self, session: ServerSession, after_ts: int, until_ts: int, schema_version: int, checkpoint: bool
    ) -> None:
        driver = self._open()
        driver.store(session).move(
            epoch=driver.epoch,
            after_ts=after_ts,
            until_ts=until_ts,
            schema_version=schema_version,
        )
        if checkpoint:
            self._checkpoint(session, until_ts, schema_version, consistent=False)

    def _checkpoint(self, session: ServerSession, commit_ts: int, schema_version: int, *, consistent: bool) -> None:
        driver = self._open()
        driver.store(session).hold(driver.epoch)
        position.write_checkpoint(
            session,
            driver.changefeed,
            commit_ts=commit_ts,
            schema_version=max(schema_version, self._schema_version),
            consistent=consistent,
        )

    def _checkpoint_is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._checkpoint_due_s:
            return False
        self._checkpoint_due_s = now_s + self._config.checkpoint_every_s
        return True

    def _moved(self, commit_ts: int, schema_version: int) -> None:
        self.commit_ts = commit_ts
        self._schema_version = max(self._schema_version, schema_version)
        bin_ = self._bin
        if bin_ is not None and bin_.is_due(commit_ts):
            self._open().patiently("expired tables", lambda session: bin_.purge(session, commit_ts))
