"""Requirements of a Spark node for the drainer's tasks, and detection of missing ones in Spark's error texts.

Tasks and their results are pickled values of this package, so every node must have the same build of it. Workers get
the driver's build when they start, and exit if theirs differs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from binlog.runtime.fields import is_loopback
from binlog.runtime.log import get_logger
from binlog.runtime.version import commit_hash, release

from drainer.extras import SPARK, install

_log = get_logger(__name__)

TASK_WAIT_S = 60.0
BUILD = "DRAINER_BUILD"
INSTALL = f"{install(SPARK.name)}; the same build on every node"
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
    """Spark settings of a session with executors on other nodes."""
    return {f"spark.executorEnv.{BUILD}": build()}


def build() -> str:
    """Release and commit of this package, as "0.1.0 b0c4…"."""
    return f"{release()} {commit_hash()}"


def check_build() -> None:
    """In a worker: exit with an error text, which Spark passes on, if the build differs from the driver's."""
    wrong = mismatch(os.environ.get(BUILD, ""), build())
    if wrong:
        sys.exit(wrong)


def mismatch(wanted: str, here: str) -> str:
    """The error text if release or commit is known on both sides and differs, else ""; a local driver sends none."""
    differs = any(
        UNKNOWN not in (one, other) and one != other for one, other in zip(wanted.split(), here.split(), strict=False)
    )
    return f"drainer build {here} is installed here, but the driver runs build {wanted}" if differs else ""


def _no_program(found: re.Match[str]) -> str:
    return (
        f"has no Python at {found[1]}: every node needs an interpreter with this package at the driver's path; to use "
        "another path on all nodes, set spark.pyspark.python in [spark.conf]"
    )


# Spark's message and what it means; the first match is reported.
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
    """The error text where a node cannot start a Python worker and Spark gives no reason; None otherwise."""
    lost = _LOST.search(text)
    if lost is None or not _NO_REASON.search(text):
        return None
    return (
        f"node {lost[1]} (executor {lost[2]}) cannot start a Python worker, and Spark reports no reason: run the "
        "drainer's Python there with -m drainer.spark.startup.worker_imports; the usual cause is a missing package: "
        f"{INSTALL}"
    )


def lacking(text: str) -> str | None:
    """The error text where a task failed because its node lacks something to run it; None otherwise."""
    lost = _LOST.search(text)
    if lost is None:
        return None
    # A traceback of the task itself may quote any text, so it is not searched.
    if "Error from python worker" not in text and "Cannot run program" not in text and "_MISMATCH" not in text:
        return None
    for pattern, say in _LACKS:
        found = pattern.search(text)
        if found is not None:
            return f"node {lost[1]} (executor {lost[2]}) {say(found)}"
    return None


def lacking_in(log: Path, begin: int) -> str | None:
    """Return what a node lacks according to Spark's log from byte `begin` on. The log has every failed attempt, not
    only the last.
    """
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    starts = [found.start() for found in _LOST.finditer(text)]
    attempts = [text[start:end] for start, end in itertools.pairwise([*starts, len(text)])]
    return next((why for attempt in reversed(attempts) if (why := lacking(attempt)) is not None), None)


@contextlib.contextmanager
def watched(master: str, wait_s: float = TASK_WAIT_S) -> Iterator[None]:
    """Wrap a task: log a warning if no executor accepts it within `wait_s` seconds (0: never), or if an executor cannot
    run it. Spark itself waits without a timeout and writes only to its log."""
    late = threading.Timer(wait_s, _warn_late, (master, wait_s))
    late.daemon = True
    if wait_s and not master.startswith("local"):
        late.start()
    try:
        yield
    except Exception as error:  # noqa: BLE001  a session that is stopped meanwhile fails in many ways
        with contextlib.suppress(Exception):  # Spark's errors ask the JVM for their text, and it may have ended
            if why := lacking(str(error)):
                _log.warning("an executor cannot run the drainer's tasks", why=why)
    finally:
        late.cancel()


def warn_of_loopback(master: str, hosts: Mapping[str, str]) -> None:
    """Warn of loopback addresses with a remote master: tasks would wait for minutes before they fail. `hosts`: by the
    setting that names them."""
    for what, host in hosts.items() if not master.startswith("local") else ():
        if is_loopback(host):
            text = "executors on other nodes cannot reach a loopback address"
            _log.warning(text, master=master, what=what, host=host)


def _warn_late(master: str, wait_s: float) -> None:
    _log.warning(
        "no executor has run a task yet: check that the cluster has free cores and memory for one, and that its nodes "
        "can reach spark.driver.host",
        master=master,
        waited_s=wait_s,
    )


def last_error(log: Path, begin: int) -> str:
    """Return the last error that Spark has logged from byte `begin` on; empty if there is none."""
    with log.open("rb") as file:
        file.seek(begin)
        found = _LAST_ERROR.findall(file.read().decode(errors="replace"))
    if any(_REMOVED in line for line in found):
        return (
            "the master removed the application because its executors kept exiting; see their output in the workers' "
            "work directories and the workers' logs (Java, memory, or another version of Spark)"
        )
    return str(found[-1]) if found else ""
