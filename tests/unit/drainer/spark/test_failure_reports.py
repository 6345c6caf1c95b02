"""Reports of what fails in a task: only those of its own tasks reach a driver, and they end with the task."""

from __future__ import annotations

import hmac
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from drainer.failures import FAILURES, TRIES_REPORTED, Failure, Failures
from drainer.spark import failure_listener
from drainer.spark.errors import ErrorSeal
from drainer.spark.failure_listener import FailureListener, listener_for
from drainer.spark.failure_reports import (
    ERROR_MAX,
    REPORT_BYTES_MAX,
    WHAT_MAX,
    Report,
    ReportAddress,
    Reporter,
    decode,
    reporting,
)
from drainer.spark.shuffle_apply import carried
from tests.support.servers import wait_until

SECRET = "5ec2e7"
FAILURE = Failure("slot 1", "refused", 1000.0, 1060.0, 7)
DATAGRAM = Report("task", 4, FAILURE).encode(SECRET, 1070.0)


@pytest.fixture
def listener() -> Iterator[FailureListener]:
    made = FailureListener("127.0.0.1", "127.0.0.1", Failures())
    yield made
    made.close()


@given(what=st.text(), error=st.text(), tries=st.integers(min_value=3), number=st.integers(min_value=1))
def test_a_report_comes_back(what: str, error: str, tries: int, number: int) -> None:
    """Whatever a destination's errors have in them, cut to what a datagram holds."""
    sent = Report("task", number, Failure(what, error, 1000.0, 1060.0, tries))
    wanted = Report("task", number, Failure(what[:WHAT_MAX], error[:ERROR_MAX], 1000.0, 1060.0, tries))
    assert decode(sent.encode(SECRET, 1070.0), SECRET, 1070.0) == wanted
    over = Report("task", number, None)
    assert decode(over.encode(SECRET, 1070.0), SECRET, 1070.0) == over


def test_the_longest_report_fits() -> None:
    failure = Failure("\U0001f600" * 10_000, "\U0001f600" * 10_000, 1.5, 2.5, 1 << 60)
    assert len(Report("f" * 16, 1 << 60, failure).encode(SECRET, 1e9)) < REPORT_BYTES_MAX


def test_the_clock_of_another_node_does_not_matter() -> None:
    report = decode(DATAGRAM, SECRET, 5070.0)
    assert report is not None and report.failure is not None
    assert (report.failure.since_s, report.failure.last_s) == (5000.0, 5060.0)


def test_a_report_under_another_secret_is_ignored() -> None:
    assert decode(DATAGRAM, SECRET, 1070.0) is not None
    assert decode(DATAGRAM, "guessed", 1070.0) is None
    assert decode(DATAGRAM, "", 1070.0) is None


@given(st.binary(max_size=200))
def test_strange_bytes_are_ignored(datagram: bytes) -> None:
    assert decode(datagram, SECRET, 1.0) is None


def test_a_report_that_is_cut_or_changed_is_ignored() -> None:
    for size in range(len(DATAGRAM)):
        assert decode(DATAGRAM[:size], SECRET, 1.0) is None
        changed = bytearray(DATAGRAM)
        changed[size] ^= 1
        assert decode(bytes(changed), SECRET, 1.0) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"7",
        b"[",
        b"[]",
        b'["task"]',
        b'["task",1,2]',
        b'["t",[],"a","b",0,0,3]',
        b'["t",1,"a","b",Infinity,0,3]',
        b'["t",1,"a","b",0,0,Infinity]',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_report_of_another_version_is_ignored(text: bytes) -> None:
    assert decode(hmac.digest(SECRET.encode(), text, "sha256") + text, SECRET, 1.0) is None


class Driver:
    """Receives what a Reporter sends, on a socket that keeps every message."""

    def __init__(self) -> None:
        self.failures = Failures()
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._here.settimeout(60)
        self.reporter = Reporter(self.failures, SECRET, lambda: there, renewed_s=0.01)
        self.failures.watcher = self.reporter.changed

    def next(self) -> Report:
        report = decode(self._here.recv(REPORT_BYTES_MAX), SECRET, 1.0)
        assert report is not None
        return report

    def close(self) -> None:
        self._here.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.reporter.end()
    made.close()


def tries_of(report: Report) -> int:
    return report.failure.tries if report.failure else 0


def test_a_report_is_renewed_while_a_try_lasts_and_taken_back_at_the_end_of_the_failure(driver: Driver) -> None:
    driver.failures.failed("slot 1", OSError("refused"), tries=TRIES_REPORTED)
    found = [driver.next() for _ in range(5)]
    assert [report.number for report in found] == [1, 2, 3, 4, 5]
    assert {report.reporter for report in found} == {found[0].reporter}
    assert {tries_of(report) for report in found} == {TRIES_REPORTED}
    driver.failures.clear("slot 1")
    while driver.next().failure is not None:
        pass
    driver.failures.failed("slot 2", OSError("refused"), tries=9)
    while not tries_of(driver.next()):
        pass


def test_the_end_of_a_task_takes_its_report_back(driver: Driver) -> None:
    """It gave up, which ends no failure of its own."""
    driver.failures.failed("slot 1", OSError("refused"), tries=TRIES_REPORTED)
    assert driver.next().failure is not None
    driver.reporter.end()
    while driver.next().failure is not None:
        pass
    assert driver.failures.here is not None


def test_nothing_is_sent_where_nothing_fails() -> None:
    def connect() -> socket.socket:
        raise AssertionError

    before = set(threading.enumerate())
    reporter = Reporter(Failures(), SECRET, connect)
    reporter.end()
    assert set(threading.enumerate()) <= before, "threads of earlier tests may end meanwhile"


def test_a_driver_that_cannot_be_reached_is_no_failure_of_the_task() -> None:
    asked = threading.Semaphore(0)

    def connect() -> socket.socket:
        asked.release()
        raise OSError("unknown host")

    failures = Failures()
    reporter = Reporter(failures, SECRET, connect, renewed_s=0.01)
    failures.watcher = reporter.changed
    failures.failed("slot 1", OSError("refused"), tries=TRIES_REPORTED)
    for _ in range(3):
        assert asked.acquire(timeout=60), "it is tried again"
    reporter.end()


def reported_through(listener: FailureListener, failures: Failures) -> None:
    """One task that fails, is seen to fail by the driver, and is over."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        FAILURES.failed("slot 1", OSError("refused"), tries=TRIES_REPORTED)
        wait_until(lambda: failures.now, what="the driver knows")
        found = failures.now
        assert found is not None and (found.what, found.error, found.tries) == ("slot 1", "refused", TRIES_REPORTED)
        yield from batches

    FAILURES.failed("of the task before", OSError("gave up"), tries=9)
    address = pickle.loads(pickle.dumps(listener.address))
    assert list(carried(work, ErrorSeal.new(), address)(iter([]))) == []
    wait_until(lambda: failures.now is None, deadline_s=10, what="it is over, before it expires")
    FAILURES.reset()


def test_from_a_task_to_the_driver_and_its_log() -> None:
    failures = Failures(clock_s=lambda: 0.0)  # in which nothing expires
    listener = FailureListener("127.0.0.1", "127.0.0.1", failures)
    try:
        with capture_logs() as lines:
            reported_through(listener, failures)
            wait_until(lambda: any(line["log_level"] == "info" for line in lines), what="the log has the end")
    finally:
        listener.close()
    said = [(line["log_level"], line["event"]) for line in lines]
    assert ("warning", "operations in Spark tasks fail and are retried") in said
    assert ("info", "operations in Spark tasks no longer fail") in said
    assert any(line.get("what") == "slot 1" and line.get("error") == "refused" for line in lines)


def test_a_stranger_ends_no_line() -> None:
    failures = Failures()
    listener = FailureListener("127.0.0.1", "127.0.0.1", failures)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            place = (listener.address.host, listener.address.port)
            for sent in (b"", b"x" * 40_000, DATAGRAM, Report("t", 1, FAILURE).encode("", 1.0)):
                stranger.sendto(sent, place)
            own = Failure("own", "refused", 1.0, 1.0, 3)
            stranger.sendto(Report("own", 1, own).encode(listener.address.secret, 1.0), place)
            wait_until(lambda: failures.now, what="a report of its own arrives behind them")
        assert failures.now is not None and failures.now.what == "own"
        assert failures.last is not None and failures.last.what == "own"
    finally:
        listener.close()


def test_the_secret_is_new_and_is_shown_nowhere(listener: FailureListener) -> None:
    other = FailureListener("127.0.0.1", "127.0.0.1", Failures())
    other.close()
    assert other.address.secret != listener.address.secret and len(other.address.secret) == 64
    assert listener.address.secret not in repr(listener.address)
    assert listener.address.secret.encode() not in Report("t", 1, FAILURE).encode(listener.address.secret, 1.0)


class Session:
    """Of which only the settings are asked."""

    def __init__(self, **settings: str) -> None:
        self.sparkContext = self
        self._settings = {f"spark.driver.{name}": value for name, value in settings.items()}

    def getConf(self) -> dict[str, str]:
        return self._settings


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "127.0.0.1"),
        ({"host": "127.0.0.1"}, "127.0.0.1"),
        ({"host": "driver.example", "bindAddress": "0.0.0.0"}, "driver.example"),
    ],
)
def test_it_listens_where_executors_reach_the_driver(settings: dict[str, str], host: str) -> None:
    made = listener_for(Session(**settings))
    assert made is not None
    made.close()
    assert made.address.host == host and made.address.port > 0


def test_the_drivers_port_is_used_for_udp_if_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def bound(host: str, bind: str, *, port: int = 0) -> int:
        asked.append(port)
        if port == 7078:
            raise OSError("in use")
        return port

    monkeypatch.setattr(failure_listener, "FailureListener", bound)
    assert listener_for(Session(host="h", port="7077")) == 7077  # type: ignore[comparison-overlap]
    assert asked == [7077]
    assert listener_for(Session(host="h", port="7078")) == 0  # type: ignore[comparison-overlap]
    assert asked == [7077, 7078, 0]


def test_a_port_that_is_taken_is_an_error(listener: FailureListener) -> None:
    with pytest.raises(OSError, match="in use"):
        FailureListener("127.0.0.1", "127.0.0.1", port=listener.address.port)


def test_a_listener_that_cannot_be_bound_is_only_logged() -> None:
    with capture_logs() as lines:
        assert listener_for(Session(host="192.0.2.1")) is None
    assert [(line["log_level"], line["host"]) for line in lines] == [("warning", "192.0.2.1")]


def test_nobody_is_told_without_an_address() -> None:
    with reporting(None):
        assert FAILURES.watcher is None
    address = ReportAddress("127.0.0.1", 1, SECRET)
    with pytest.raises(ZeroDivisionError), reporting(address):
        assert FAILURES.watcher is not None
        raise ZeroDivisionError
    assert FAILURES.watcher is None
