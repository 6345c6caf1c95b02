"""The driver's end of failure_reports.py: receives the failures in tasks, for /status, the metric and the log."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING

from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from drainer.failures import FAILURES, Failures
from drainer.spark.failure_reports import REPORT_BYTES_MAX, ReportAddress, decode, line_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOKED_AT_S = 1.0

_log = get_logger(__name__)


def listener_for(session: SparkSession) -> FailureListener | None:
    """Return a listener at the address by which executors reach the driver. Its UDP port has the number of the driver's
    TCP port, which firewalls may allow, else any number. If it cannot listen, log this and return None: failures in
    tasks are then only in the workers' logs."""
    settings = session.sparkContext.getConf()
    host = settings.get("spark.driver.host") or "127.0.0.1"
    bind = settings.get("spark.driver.bindAddress") or host
    port = int(settings.get("spark.driver.port") or 0)
    try:
        with contextlib.suppress(OSError):
            return FailureListener(host.strip("[]"), bind.strip("[]"), port=port)
        return FailureListener(host.strip("[]"), bind.strip("[]"))
    except OSError as error:
        _log.warning(
            "/status will not show failures in Spark tasks, only the workers' logs will: no UDP port",
            host=bind,
            error=str(error),
        )
        return None


class FailureListener:
    """Receives reports of failures from tasks over UDP until `close`. `address`: given to tasks, so that they can send
    reports; contains this listener's secret."""

    def __init__(self, host: str, bind: str, failures: Failures = FAILURES, *, port: int = 0) -> None:
        """`host`: the name by which tasks reach it; `bind`: the address of an interface here; `port` 0: any. Raises
        OSError.
        """
        family, kind, protocol, _, place = socket.getaddrinfo(bind, port, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.bind(place)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(_LOOKED_AT_S)
        self._bind = bind
        self.address = ReportAddress(host, self._socket.getsockname()[1], secrets.token_hex(32))
        self._failures = failures
        self._outage = Outage(
            _log, "operations in Spark tasks fail and are retried", "operations in Spark tasks no longer fail"
        )
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="failure listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError), line_to(ReportAddress(self._bind, self.address.port, "")) as wake:
            wake.send(b"")
        self._thread.join(5)
        self._socket.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._hear(self._datagram())
        except OSError as error:
            if not self._closing:
                _log.warning(
                    "/status no longer shows failures in Spark tasks, only the workers' logs do", error=str(error)
                )

    def _datagram(self) -> bytes:
        """Return the next datagram, or nothing after a short timeout."""
        try:
            return self._socket.recv(REPORT_BYTES_MAX)
        except TimeoutError:
            return b""

    def _hear(self, datagram: bytes) -> None:
        report = decode(datagram, self.address.secret, time.time())
        if report is not None:
            self._failures.heard(report.reporter, report.number, report.failure)
        self._tell()

    def _tell(self) -> None:
        """Log failures in tasks, from time to time, and once when they have ended."""
        failure = self._failures.elsewhere
        if failure is not None:
            self._outage.failed(what=failure.what, error=failure.error, tries=failure.tries)
        else:
            self._outage.over()
