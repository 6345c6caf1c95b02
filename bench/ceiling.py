"""The destination's own write rate: the same rows loaded by plain statements or files, with no pipeline running."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from bench.report import timed
from bench.sbtest import SBTEST, Table, rows
from tests.support.servers import MariaDB

ROWS_A_STATEMENT = 500
ROWS_A_TRANSACTION = 10_000
CONNECTIONS = 2

_REPLACE = "REPLACE INTO ceiling.sbtest (id,k,c,pad) VALUES "
_LOAD = "LOAD DATA LOCAL INFILE '{file}' REPLACE INTO TABLE ceiling.sbtest CHARACTER SET binary (id,k,c,pad)"


class PlainLoader:
    """Rows made in advance, in transactions of ROWS_A_TRANSACTION: as statements in memory and as files. Each method
    loads all of them into an empty `ceiling.sbtest` and returns rows a second."""

    def __init__(self, mariadb: MariaDB, count: int, *, table: Table = SBTEST) -> None:
        self._mariadb = mariadb
        self._table = table
        self._count = count
        self._directory = Path(tempfile.mkdtemp(prefix="bench-ceiling-"))
        self._directory.chmod(0o755)
        self._statements: list[list[bytes]] = []
        self._files: list[Path] = []
        some: list[tuple[int, int, str, str]] = []
        for row in rows(count, table=table):
            some.append(row)
            if len(some) == ROWS_A_TRANSACTION:
                self._add(some)
                some = []
        if some:
            self._add(some)

    def _add(self, some: list[tuple[int, int, str, str]]) -> None:
        texts = [f"({i},{k},'{c}','{pad}')" for i, k, c, pad in some]
        starts = range(0, len(texts), ROWS_A_STATEMENT)
        self._statements.append([(_REPLACE + ",".join(texts[at : at + ROWS_A_STATEMENT])).encode() for at in starts])
        file = self._directory / f"{len(self._files)}.tsv"
        file.write_text("".join(f"{i}\t{k}\t{c}\t{pad}\n" for i, k, c, pad in some))
        self._files.append(file)

    def __enter__(self) -> PlainLoader:
        return self

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def replace(self, *, connections: int = CONNECTIONS) -> float:
        """Load by REPLACE statements of ROWS_A_STATEMENT rows."""
        return self._load(connections, self._statements.__getitem__)

    def load_data(self, *, connections: int = CONNECTIONS) -> float:
        """Load by LOAD DATA LOCAL … REPLACE, with a file for each transaction."""
        return self._load(connections, lambda number: [_LOAD.format(file=self._files[number]).encode()])

    def _load(self, connections: int, statements: Callable[[int], list[bytes]]) -> float:
        self._mariadb.query("CREATE DATABASE IF NOT EXISTS ceiling")
        self._mariadb.query("DROP TABLE IF EXISTS ceiling.sbtest")
        self._mariadb.query(self._table.create("ceiling"))
        failed: list[Exception] = []

        def load(mine: range) -> None:
            try:
                with self._mariadb.connect(autocommit=False, local_infile=True) as connection:
                    for number in mine:
                        for statement in statements(number):
                            connection.query(statement)
                        connection.commit()
            except Exception as error:  # noqa: BLE001  a thread's error must end the measurement
                failed.append(error)

        shares = [range(number, len(self._files), connections) for number in range(connections)]
        threads = [threading.Thread(target=load, args=(share,)) for share in shares]
        with timed() as watch:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failed:
            raise failed[0]
        found = self._mariadb.query("SELECT COUNT(*) FROM ceiling.sbtest")[0][0]
        if found != self._count:
            raise SystemExit(f"the plain loader left {found} of {self._count} rows")
        self._mariadb.query("DROP DATABASE ceiling")
        return self._count / watch.seconds
