"""Errors on their way through Spark: ours out of its text, and its own as one line."""

from __future__ import annotations

import base64
import pickle
import re

from binlog.errors import BinlogError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

# What a call into Spark raises, depending on how far it got.
SPARK_ERRORS = (PySparkException, Py4JError)
_MARK = re.compile(r"<binlog-error:([A-Za-z0-9+/=]+)>")
_RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Gone|Refused|Unavailable): .*$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?!py4j\.)((?:[\w$]+\.)+[\w$]+: .+)$", re.MULTILINE)


class SparkFailed(BinlogError):
    """Spark gave up on a job or on the query; the text is the innermost reason found, more is in spark.log."""


class ErrorInTask(Exception):
    """Carries an error of ours out of a task. Spark turns it into text, `unwrap` turns it back."""

    def __init__(self, error: BinlogError) -> None:
        # Its parts, not the error: many take keyword arguments, which an exception's own pickle forgets.
        parts = (type(error), error.args, {k: v for k, v in vars(error).items() if not k.startswith("__")})
        text = base64.b64encode(pickle.dumps(parts)).decode()
        super().__init__(f"{error} <binlog-error:{text}>")


def unwrap(error: BaseException) -> BinlogError:
    """The error of ours that a task raised, else SparkFailed."""
    text = str(error)
    found = _MARK.search(text)
    if found is None:
        return SparkFailed(reason_of(text))
    kind, args, state = pickle.loads(base64.b64decode(found.group(1)))  # noqa: S301  written by our own task
    ours = kind.__new__(kind)
    assert isinstance(ours, BinlogError)
    ours.args = args
    vars(ours).update(state)
    return ours


def reason_of(text: str) -> str:
    """The line that matters in Spark's many: the last error of a Python traceback, else the innermost cause that says
    something, else the first line with an exception's name, else the first line."""
    head = text.partition("=== Streaming Query ===")[0]
    for pattern in (_RAISED, _CAUSE):
        found = pattern.findall(head)
        if found:
            return str(found[-1])
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    return next((line for line in lines if "Exception" in line), lines[0] if lines else "no reason given")
