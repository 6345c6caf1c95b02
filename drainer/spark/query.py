"""The drainer's streaming query: the scheduler plans the source "binlog", and every batch goes into the pipeline."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from binlog.runtime.log import get_logger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from drainer.apply.fold_order import DistributedJob, ReadOrder
from drainer.changes.slot_blob import folder_of
from drainer.sink.base import Receipt
from drainer.spark import shuffle_apply
from drainer.spark.errors import SPARK_ERRORS, ErrorSeal, SparkFailed, text_of

_log = get_logger(__name__)


class SparkBatch:
    """One micro-batch of packed rows (MicroBatch). Usable after Spark has gone on to the next one."""

    def __init__(self, packed: DataFrame, errors: ErrorSeal, files: str = "") -> None:
        """`files`: the query's folder of files (slot_blob.folder_of), empty if there is none."""
        self._packed = packed
        self._errors = errors
        self._files = files
        self._folder = ""
        self._by_slot: shuffle_apply.BySlot | None = None

    def covers(self, after_ts: int, until_ts: int) -> None:
        """Set the batch's range (after_ts, until_ts]. Its files are removed when no reference to the batch is left."""
        self._folder = folder_of(self._files, after_ts, until_ts)
        if self._folder:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def messages(self) -> Iterable[tuple[str, bytes]]:
        try:
            table = self._packed.toArrow()
        except SPARK_ERRORS as error:
            raise self._errors.unwrap(error) from error
        for pump, blob in zip(table.column("pump"), table.column("blob"), strict=True):
            yield pump.as_py(), blob.as_py()

    def check(self, order: ReadOrder) -> None:
        shuffle_apply.check_rows(self._packed, order, self._errors)

    def read(self, order: ReadOrder, *, folded: bool) -> None:
        self._read(order, folded)

    def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
        return shuffle_apply.distribute(self._read(job.order, job.folded), job, self._errors)

    def _read(self, order: ReadOrder, folded: bool) -> shuffle_apply.BySlot:
        """Read the batch once. All its jobs have the same order."""
        if self._by_slot is None:
            folder = self._folder if folded else ""
            self._by_slot = shuffle_apply.read_by_slot(self._packed, order, folded, self._errors, folder)
        return self._by_slot


class Query:
    """Runs from `start` until `stop` or until a batch raises. Spark's own checkpoint is a new folder at every start,
    because only the destination's position counts (correctness rule 17)."""

    def __init__(self, session: SparkSession, *, options: dict[str, str], one_machine: bool = False) -> None:
        """`one_machine`: all tasks run on this machine and pass large values on in files."""
        self._session = session
        self._errors = ErrorSeal.new()
        self._files = str(Path(tempfile.gettempdir(), "drainer-blobs", secrets.token_hex(4))) if one_machine else ""
        files = {"blob-folder": self._files} if self._files else {}
        self._options = {**options, **files, "error-secret": self._errors.secret}
        self._query: StreamingQuery | None = None
        self._stopped = threading.Event()
        self._checkpoint = Path(tempfile.mkdtemp(prefix="drainer-query-"))

    def start(self, batch: Callable[[int, SparkBatch], None], ended: Callable[[BaseException | None], None]) -> None:
        """Start the query. `batch` is called with the `until_ts` of one micro-batch after another, and the micro-batch.
        `ended` is called once, with the error if there was one; it must return only when no batch of the query is being
        applied any more, because their files are removed then."""
        frame = self._session.readStream.format("binlog").options(**self._options).load()

        def each(packed: DataFrame, batch_id: int) -> None:
            try:
                until_ts = self._until_ts(batch_id)
            except SparkFailed as error:
                raise self._errors.carry(error) from error
            batch(until_ts, SparkBatch(packed, self._errors, self._files))

        # As a URL, because a path alone belongs to the cluster's default file system, which may not be on this machine.
        writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", self._checkpoint.as_uri())
        query = self._query = writer.queryName("drainer").start()
        if self._stopped.is_set():  # for example by a batch that failed meanwhile
            self.stop()

        def wait() -> None:
            failure: BaseException | None = None
            try:
                query.awaitTermination()
            except (*SPARK_ERRORS, OSError) as error:  # OSError: the JVM has ended
                failure = self._errors.unwrap(error)
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            try:
                ended(failure)
            finally:
                # pyspark keeps the error of a batch, and with it the batch, until the JVM's garbage collector has run.
                if self._files:
                    shutil.rmtree(self._files, ignore_errors=True)

        threading.Thread(target=wait, name="query", daemon=True).start()

    def _until_ts(self, batch_id: int) -> int:
        """Return the end of a micro-batch. Spark has written it to the checkpoint before it calls for the batch; the
        last line is the offset of the only source. Raises SparkFailed."""
        path = self._checkpoint / "offsets" / str(batch_id)
        try:
            return int(json.loads(path.read_text().splitlines()[-1])["commit_ts"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SparkFailed(f"{path} is not an offset log of the source binlog: {error!r}") from error

    def stop(self) -> None:
        """Stop the query. If `start` has not started it yet, `start` stops it."""
        self._stopped.set()
        if self._query is None:
            return
        try:
            self._query.stop()
        except (*SPARK_ERRORS, OSError) as error:  # OSError: the JVM has ended
            _log.warning("Spark did not stop its query in time", error=text_of(error).splitlines()[0])
