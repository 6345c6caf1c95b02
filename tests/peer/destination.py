"""A TiDB as a destination: one process with its store in a folder (`tidb-server -store unistore`)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import MariaDB, Server, free_port, wait_until


@contextlib.contextmanager
def running_tidb(binaries: Path) -> Iterator[MariaDB]:
    """A fresh server, reached as a MariaDB is. `binaries` is the folder that PEER_BIN names."""
    directory = Path(tempfile.mkdtemp(prefix="tidb-"))
    port = free_port()
    file = directory / "tidb.toml"
    file.write_text(
        f'host = "127.0.0.1"\nport = {port}\nstore = "unistore"\npath = "{directory}/store"\n'
        f'temp-dir = "{directory}/tmp"\ntmp-storage-path = "{directory}/tmp-storage"\n[status]\nreport-status = false\n'
        f'[log]\nslow-query-file = "{directory}/slow.log"\n[log.file]\nfilename = "{directory}/tidb.log"\n'
    )
    server = Server([str(binaries / "tidb-server"), "-config", str(file)], directory / "tidb.out").start()
    tidb = MariaDB(server, port, directory, user="root", password="")
    try:
        wait_until(lambda: tidb.query("SELECT 1"), deadline_s=90, what=f"TiDB answers\n{server.tail()}")
        yield tidb
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
