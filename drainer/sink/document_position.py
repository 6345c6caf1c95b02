"""A changefeed's position as one document: in memory, or in a file that is replaced whole.

The file: one line, `{"crc": N, "body": {…}}`, the checksum being of the body as it is written. A transaction reads it,
and ends by writing a new file beside it, flushing that to the disk and renaming it over the old one; so it is never
half-way, and what a crash leaves beside it is not looked at. A drainer holds `<file>.lock` for as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import make_directory, sync_directory

from drainer.sink.base import SCHEMA_ID, Identity, Intent, TableLoad
from drainer.sink.errors import DestinationDown, DestinationRefused, LockHeld, PositionMoved
from drainer.sink.position import DONE, JobMark, Stored, body_of, refusal, stored_of, taken_meanwhile, tuples

# A lock file for the one process that may write to a destination.


def lock(path: Path) -> int:
    """Lock `<path>.lock`, making it and its directory; the lock is held until the returned descriptor is closed, or the
    process ends.

    Raises LockHeld while another process holds it, and DestinationRefused where it cannot be made or locked."""
    beside = path.with_name(path.name + ".lock")
    try:
        make_directory(path.parent)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DestinationRefused(
            f"cannot make {beside}: {error.strerror}; {path.parent} must be a directory in which this user may write"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise LockHeld(f"{path} is being written by another drainer (it holds {beside})") from error
    except OSError as error:
        os.close(handle)
        raise DestinationRefused(
            f"{beside} cannot be locked ({error}): put {path} on a file system with locks"
        ) from error
    return handle


POSITION: Final = "position.json"


@dataclass
class Document:
    """The stored state of one changefeed. `jobs`: DDL jobs by id; `notes`: further state of the sink, as JSON; `loads`:
    progress of the first load by table id."""

    stored: Stored | None = None
    jobs: dict[int, JobMark] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    loads: dict[int, TableLoad] = field(default_factory=dict)

    @property
    def is_loading(self) -> bool:
        """Whether rows of a first load are missing: they have the commit_ts of the position."""
        return any(not load.is_complete for load in self.loads.values())


@dataclass(frozen=True, slots=True)
class DocumentPositionStore:
    """See position.SqlPositionStore. Operations change `document` directly. The caller, who owns the transaction, then
    stores or discards it."""

    document: Document
    label: str

    def read(self) -> Stored | None:
        return self.document.stored

    def create(self, commit_ts: int, schema_version: int = 0, *, loads: bool = False) -> None:
        if self.document.stored is not None:
            raise PositionMoved(f"{self.label}: it has a position already")
        self.document.stored = Stored(commit_ts, schema_version, 0)
        self.document.loads = {SCHEMA_ID: TableLoad(SCHEMA_ID, ())} if loads else {}

    def take_epoch(self, epoch: int, node_id: str) -> int:
        stored = self.document.stored
        if stored is None or stored.epoch != epoch:
            raise taken_meanwhile(self)
        self.document.stored = replace(stored, epoch=epoch + 1, node_id=node_id)
        return epoch + 1

    def hold(self, epoch: int) -> None:
        if self.document.stored is None or self.document.stored.epoch != epoch:
            raise refusal(self, epoch=epoch, after_ts=0, until_ts=0)

    def move(self, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
        self._moved(epoch, after_ts, until_ts, schema_version, is_open=False)

    def write_intent(self, *, epoch: int, intent: Intent, stage: str) -> None:
        stored = self.document.stored
        if stored is None or (stored.epoch, stored.commit_ts) != (epoch, intent.after_ts):
            raise refusal(self, epoch=epoch, after_ts=intent.after_ts, until_ts=intent.until_ts)
        self.document.stored = replace(stored, intent=intent, stage=stage)

    def clear_intent(self, *, epoch: int, intent: Intent, schema_version: int) -> None:
        self._moved(epoch, intent.after_ts, intent.until_ts, schema_version, is_open=True)

    def _moved(self, epoch: int, after_ts: int, until_ts: int, schema_version: int, *, is_open: bool) -> None:
        stored = self.document.stored
        wanted = (epoch, after_ts, is_open)
        if stored is None or (stored.epoch, stored.commit_ts, stored.intent is not None) != wanted:
            raise refusal(self, epoch=epoch, after_ts=after_ts, until_ts=until_ts)
        version = max(stored.schema_version, schema_version)
        self.document.stored = replace(stored, commit_ts=until_ts, schema_version=version, intent=None, stage="")

    def job(self, job_id: int) -> JobMark | None:
        return self.document.jobs.get(job_id)

    def mark_job(self, mark: JobMark) -> None:
        self.document.jobs[mark.job_id] = mark

    def loads(self) -> list[TableLoad]:
        return [load for _, load in sorted(self.document.loads.items())]

    def put_loads(self, epoch: int, loads: Sequence[TableLoad], done: TableLoad | None) -> None:
        self.hold(epoch)
        if done is None or self.step_load(done.table_id, done.part, done.loaded):
            self.document.loads |= {load.table_id: load for load in loads}

    def step_load(self, table_id: int, part: int, number: int) -> bool:
        """`part`: 0, because one process loads all tables."""
        load = self.document.loads.get(table_id)
        if load is None or load.loaded < number:
            raise PositionMoved(f"{self.label}: range {number} of table {table_id} is not the next one of its load")
        self.document.loads[table_id] = replace(load, loaded=max(load.loaded, number + 1))
        return load.loaded == number

    def purge_jobs(self, *, before: int, before_ts: int) -> None:
        self.document.jobs = {
            id_: mark
            for id_, mark in self.document.jobs.items()
            if id_ >= before or mark.commit_ts >= before_ts or mark.state != DONE
        }


def label_of(identity: Identity, store: object) -> str:
    return f"changefeed {identity.changefeed!r} of cluster {identity.cluster_id} in {store}"


class PositionFile:
    """The document of one changefeed in a file of its own. Open, with its lock held, until `close`. Raises LockHeld."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self._identity = identity
        self._label = label_of(identity, path)
        self._lock = lock(path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DocumentPositionStore]:
        """Make all changes of the body durable when it ends, or none of them if it raises.

        Raises DestinationRefused if the file cannot be read, and DestinationDown if it cannot be written."""
        document = self._read()
        store = DocumentPositionStore(deepcopy(document), self._label)
        yield store
        if store.document != document:
            crash_point("sink.before_commit")
            self._write(store.document)
            crash_point("sink.after_commit")

    def _read(self) -> Document:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return Document()
        except (OSError, UnicodeDecodeError) as error:
            raise DestinationRefused(f"{self._label} cannot be read: {error}") from error
        try:
            whole = json.loads(text)
            body = whole["body"]
            if zlib.crc32(_body_text(body).encode()) != whole["crc"]:
                raise ValueError("its checksum is wrong")
            owner = (body["cluster_id"], body["changefeed"])
        except (ValueError, KeyError, TypeError) as error:
            raise DestinationRefused(
                f"{self._label} is damaged ({error}): restore it, or empty the destination and start anew"
            ) from error
        if owner != (self._identity.cluster_id, self._identity.changefeed):
            raise DestinationRefused(f"{self.path} is the position of changefeed {owner[1]!r} of cluster {owner[0]}")
        try:
            return document_of(body, self._label)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DestinationRefused(
                f"{self._label} was not written by this version of the drainer ({error!r}): start the one that wrote it"
            ) from error

    def _write(self, document: Document) -> None:
        body = document_value(document, self._identity)
        text = json.dumps({"crc": zlib.crc32(_body_text(body).encode()), "body": body}) + "\n"
        beside = self.path.with_name(self.path.name + ".new")
        try:
            with beside.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            crash_point("sink.position_written")
            beside.rename(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise DestinationDown(f"{self._label} cannot be written: {error}") from error

    def close(self) -> None:
        os.close(self._lock)


def _body_text(body: object) -> str:
    return json.dumps(body, sort_keys=True)


def document_value(document: Document, identity: Identity) -> dict[str, Any]:
    return {
        "cluster_id": identity.cluster_id,
        "changefeed": identity.changefeed,
        "position": None if document.stored is None else body_of(document.stored),
        "jobs": [asdict(mark) for mark in document.jobs.values()],
        "notes": document.notes,
        "loads": [asdict(load) for load in document.loads.values()],
    }


def document_of(body: dict[str, Any], label: str) -> Document:
    found = Document(notes=body["notes"])
    found.stored = None if body["position"] is None else stored_of(body["position"], label)
    found.jobs = {mark["job_id"]: JobMark(**mark) for mark in body["jobs"]}
    found.loads = {load["table_id"]: TableLoad(**tuples(load)) for load in body.get("loads", ())}
    return found
