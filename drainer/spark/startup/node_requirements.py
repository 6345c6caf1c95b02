"""What a machine of a Spark cluster must have for the drainer's tasks, and what it lacks, read from Spark's text.

Tasks and their results are pickled values of this package, so every node must have the same build of it. Workers are
told the driver's when they start, and refuse to run with another one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from binlog.runtime.log import get_logger
from binlog.runtime.version import commit_hash, release

_log = get_logger(__name__)

TASK_WAIT_S = 60.0
BUILD = "DRAINER_BUILD"
INSTALL = "pip install 'tidb-binlog-spark[spark]', the same build on every node"
UNKNOWN = "unknown"

_LOST = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \((\S+) executor (\S+)\)")
_LAST_ERROR = re.compile(r"^[\d/]+ [\d:.]+ ERROR \w+: (.+)$", re.MULTILINE)
# Spark fails while it cleans up after a worker that did not start, and reports that failure alone; a JVM in which it
# has happened often leaves the stack trace out.
_NO_REASON = re.compile(
    r"NullPointerException(?:: [^\n]*)?"
    r"(?=(?:\s+at java\.base/[^\n]*)*\s+at org\.apache\.spark\.api\.python\.PythonWorkerFactory|\n\n|\nDriver|\s*$)"
)
_REMOVED = "Master removed our application"


def settings() -> Mapping[str, str]:
    """Spark settings of a session whose executors run elsewhere."""
    return {f"spark.executorEnv.{BUILD}": build()}


def build() -> str:
    """Release and commit of this package, as "0.1.0 b0c4…"."""
    return f"{release()} {commit_hash()}"


def check_build() -> None:
    """In a worker: end with a text on standard error, which Spark hands on, unless the driver's build is here."""
    wrong = mismatch(os.environ.get(BUILD, ""), build())
    if wrong:
        sys.exit(wrong)


def mismatch(wanted: str, here: str) -> str:
    """Empty unless release or commit is known on both sides and differs; a driver on this machine names none."""
    differs = any(
        UNKNOWN not in (one, other) and one != other for one, other in zip(wanted.split(), here.split(), strict=False)
    )
    return f"drainer build {here} is installed here, and the drainer that asks is build {wanted}" if differs else ""


def _no_program(found: re.Match[str]) -> str:
    return (
        f"has no Python at {found[1]}: every node needs an interpreter with this package at the path of the drainer's; "
        f"another path for all of them: [spark.conf] spark.pyspark.python"
    )


# What Spark says, and what it means; the first that is found is told.
_LACKS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r'Cannot run program "([^"]+)".*error=(?:2|13),'), _no_program),
    (
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"),
        lambda found: f"has no module {found[1]}: {INSTALL}",
    ),
    (re.compile(r"drainer build .+"), lambda found: f"has another version: {found[0].rstrip()}: {INSTALL}"),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\] .*?version: (\S+) than that in driver: ([\d.]+)"),
        lambda found: (
            f"runs Python {found[1]}, and the drainer Python {found[2].rstrip('.')}: the minor versions must match"
        ),
    ),
)


def without_reason(text: str) -> str | None:
    """Of a node that cannot start a Python worker, where Spark's error does not have the reason."""
    lost = _LOST.search(text)
    if lost is None or not _NO_REASON.search(text):
        return None
    return (
        f"node {lost[1]} (executor {lost[2]}) cannot start a Python worker, and Spark does not say why: try the "
        f"drainer's Python there with -m drainer.spark.startup.worker_daemon; mostly the package is missing: {INSTALL}"
    )


def lacking(text: str) -> str | None:
    """What a node lacks, where that is what failed a task; None where it is something else."""
    lost = _LOST.search(text)
    if lost is None:
        return None
    # A task that raised has a traceback of its own, whose text may be anybody's.
    if "Error from python worker" not in text and "Cannot run program" not in text and "_MISMATCH" not in text:
        return None
    for pattern, say in _LACKS:
        found = pattern.search(text)
        if found is not None:
            return f"node {lost[1]} (executor {lost[2]}) {say(found)}"
    return None


def lacking_in(log: Path, begin: int) -> str | None:
    """What a node lacks by Spark's log from byte `begin` on, which has every failed attempt and not only the last."""
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    starts = [found.start() for found in _LOST.finditer(text)]
    attempts = [text[start:end] for start, end in itertools.pairwise([*starts, len(text)])]
    return next((why for attempt in reversed(attempts) if (why := lacking(attempt)) is not None), None)


@contextlib.contextmanager
def watched(master: str, wait_s: float = TASK_WAIT_S) -> Iterator[None]:
    """While inside, a first task is waited for. An operator hears when no executor takes it, or cannot run it; Spark
    itself waits for ever and tells its log."""
    place = "local" if master.startswith("local") else master
    late = threading.Timer(wait_s, _tell_late, (place, wait_s))
    late.daemon = True
    if place != "local":
        late.start()
    try:
        yield
    except Exception as error:  # noqa: BLE001  a session that is stopped meanwhile fails in many ways
        why = lacking(str(error))
        if why is not None:
            _log.warning("an executor cannot run the drainer's tasks", why=why)
    finally:
        late.cancel()


def warn_of_loopback(master: str, what: str, host: str) -> None:
    """Tasks wait for minutes for a destination that does not answer before they say so."""
    if not master.startswith("local") and is_loopback(host):
        _log.warning("executors look for this address on their own machines", master=master, what=what, host=host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _tell_late(master: str, wait_s: float) -> None:
    _log.warning(
        "no executor has run a task yet: has the cluster free cores and memory for one, and can its nodes reach "
        "spark.driver.host?",
        master=master,
        waited_s=wait_s,
    )


def last_error(log: Path, begin: int) -> str:
    """The last error that Spark has logged from byte `begin` on; empty where there is none."""
    with log.open("rb") as file:
        file.seek(begin)
        found = _LAST_ERROR.findall(file.read().decode(errors="replace"))
    if any(_REMOVED in line for line in found):
        return (
            "the master ended it, because executors ended one after another: their output in the workers' work folders "
            "and the workers' own logs say why (Java, memory, or another version of Spark)"
        )
    return str(found[-1]) if found else ""
