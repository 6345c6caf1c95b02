"""Report operations that fail and are retried in a task to the driver, while they fail. failure_listener.py is the
driver's end.

    task                                    driver
    (number, what fails)            ──►     /status, the log, the metric
    once a second, and when it is over

Tasks run in processes and on nodes of their own, and Spark reports to the driver only how they end. A report is one UDP
datagram: nothing waits for it, a lost one is replaced by the next, and the last one expires. It begins with a message
authentication code under a secret that only the driver and its tasks know; anything else is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from drainer.failures import FAILURES, Failure, Failures

RENEWED_S = 1.0
# In characters: a report of this length is a datagram on any network, in a few fragments at worst.
WHAT_MAX, ERROR_MAX = 200, 1000
REPORT_BYTES_MAX = 16 << 10
_CODE_BYTES = hashlib.sha256().digest_size
_ENDS_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class ReportAddress:
    """Where the driver listens. Picklable; travels with a task."""

    host: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Message `number` of the task `reporter`. `failure` None: no operation fails there any more."""

    reporter: str
    number: int
    failure: Failure | None

    def encode(self, secret: str, now_s: float) -> bytes:
        """`now_s`: unix time here. Times are sent as ages, because clocks of nodes differ."""
        parts: list[object] = [self.reporter, self.number]
        if self.failure is not None:
            what, error = self.failure.what[:WHAT_MAX], self.failure.error[:ERROR_MAX]
            parts += [what, error, now_s - self.failure.since_s, now_s - self.failure.last_s, self.failure.tries]
        text = json.dumps(parts).encode()
        return _code(secret, text) + text


def decode(datagram: bytes, secret: str, now_s: float) -> Report | None:
    """Decode a report. `now_s`: unix time here. Returns None for a datagram that is not from a task of this driver, or
    that is from another version.
    """
    code, text = datagram[:_CODE_BYTES], datagram[_CODE_BYTES:]
    if not hmac.compare_digest(code, _code(secret, text)):
        return None
    try:
        reporter, number, *rest = json.loads(text)
        report = Report(str(reporter), int(number), None)
        if not rest:
            return report
        what, error, since_s, last_s, tries = rest
        ages = [max(0.0, float(age_s)) for age_s in (since_s, last_s)]
        if not all(map(math.isfinite, ages)):
            return None
        failure = Failure(str(what), str(error), now_s - ages[0], now_s - ages[1], int(tries))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return Report(report.reporter, report.number, failure)


def _code(secret: str, text: bytes) -> bytes:
    return hmac.digest(secret.encode(), text, "sha256")


@contextlib.contextmanager
def reporting(address: ReportAddress | None) -> Iterator[None]:
    """While inside, send a task's failures to `address`; None: send nothing."""
    if address is None:
        yield
        return
    FAILURES.reset()
    reporter = Reporter(FAILURES, address.secret, lambda: line_to(address))
    FAILURES.watcher = reporter.changed
    try:
        yield
    finally:
        FAILURES.watcher = None
        reporter.end()


def line_to(address: ReportAddress) -> socket.socket:
    """Return a socket to the driver. Raises OSError, for example if the host's name is unknown here."""
    family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
    line = socket.socket(family, kind, protocol)
    try:
        line.setblocking(False)
        line.connect(target)
    except OSError:
        line.close()
        raise
    return line


class Reporter:
    """Sends the state of `failures` from a thread of its own. The thread starts with the first call of `changed`,
    because one attempt may last longer than a report. Nothing is sent while nothing fails."""

    def __init__(
        self, failures: Failures, secret: str, connect: Callable[[], socket.socket], *, renewed_s: float = RENEWED_S
    ) -> None:
        """`connect` returns a non-blocking socket; it may raise OSError, and is then called again."""
        self._failures = failures
        self._secret = secret
        self._connect = connect
        self._renewed_s = renewed_s
        self._line: socket.socket | None = None
        self._name = secrets.token_hex(8)
        self._number = 0
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def changed(self) -> None:
        """Note that the failures have changed. Returns immediately."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="failure reports", daemon=True)
                self._thread.start()
        self._wake.set()

    def end(self) -> None:
        """Note that the task has ended: no operation fails in it any more."""
        self._ended.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_ENDS_WITHIN_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            failure = self._failures.here
            self._report(failure)
            self._ended.wait(self._renewed_s)
            if failure is None:
                self._wake.wait()
        self._report(None)
        if self._line is not None:
            self._line.close()

    def _report(self, failure: Failure | None) -> None:
        self._number += 1
        datagram = Report(self._name, self._number, failure).encode(self._secret, time.time())
        try:
            if self._line is None:
                self._line = self._connect()
            self._line.send(datagram)
        except OSError:
            pass  # the worker's log has the failure itself, and the next report is sent in a second
