"""Transports the drainer's errors through Spark, and reduces Spark's own errors to one line.

Spark passes errors of tasks to the driver as text, which also quotes names and values of databases. The drainer's
errors are therefore encoded as JSON with a message authentication code under a secret that only the driver and its
tasks know, so that other text is never decoded as an error. Decoding creates only instances of loaded error classes,
with plain values in their fields; no code is called.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import socket
from dataclasses import dataclass, field
from typing import Any

from binlog.errors import BinlogError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from drainer.spark.startup.node_requirements import lacking, without_reason

# Exceptions of a call into Spark.
SPARK_ERRORS = (PySparkException, Py4JError)
JVM_ENDED = "Spark's JVM ended"
_MARK = re.compile(r"<binlog-error:([A-Za-z0-9+/]+={0,2}):([0-9a-f]{64})>")
_RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Gone|Refused|Unavailable): .*$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?!py4j\.)((?:[\w$]+\.)+[\w$]+: .+)$", re.MULTILINE)
# The exception in the JVM that py4j reported, up to its stack trace; Spark's texts may have several lines.
_IN_JVM = re.compile(r"^: ((?:[\w$]+\.)+[\w$]+: .+?)(?=\n\s+at |\nCaused by: |\Z)", re.MULTILINE | re.DOTALL)


class SparkFailed(BinlogError):
    """A Spark job or the query failed; the text is the innermost reason found, details are in spark.log."""


class NodeLacks(SparkFailed):
    """A node of the cluster cannot run tasks; the text names it and what to install."""


class WorkerNotStarted(SparkFailed):
    """A node of the cluster cannot start a Python worker, and Spark's error has no reason; its log may."""


class ErrorInTask(Exception):
    """Carries a BinlogError out of a task as text; ErrorSeal.unwrap decodes it."""


@dataclass(frozen=True, slots=True)
class ErrorSeal:
    """The secret shared by the driver and its tasks. Without one (data source used outside the drainer) an error is
    plain text."""

    secret: str = field(default="", repr=False)

    @classmethod
    def new(cls) -> ErrorSeal:
        return cls(os.urandom(32).hex())

    def carry(self, error: BinlogError) -> ErrorInTask:
        """Return the exception that a task raises instead of `error`."""
        if not self.secret:
            return ErrorInTask(f"{type(error).__name__}: {error}")
        fields = {name: _packed(value) for name, value in vars(error).items() if not name.startswith("__")}
        args = [_packed(value) for value in error.args]
        parts = {"class": _name(type(error)), "args": args, "fields": fields, "node": socket.gethostname()}
        text = base64.b64encode(json.dumps(parts).encode()).decode()
        return ErrorInTask(f"{error} <binlog-error:{text}:{self._code(text)}>")

    def unwrap(self, error: BaseException) -> BinlogError:
        """Return the drainer's own error that a task raised, else a SparkFailed."""
        text = text_of(error)
        for found in _MARK.finditer(text):
            if self.secret and hmac.compare_digest(self._code(found[1]), found[2]):
                ours = _read(found[1])
                if ours is not None:
                    return ours
        lacks = lacking(text)
        if lacks is not None:
            return NodeLacks(lacks)
        unexplained = without_reason(text)
        return SparkFailed(reason_of(text)) if unexplained is None else WorkerNotStarted(unexplained)

    def _code(self, text: str) -> str:
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def text_of(error: BaseException) -> str:
    """Return the text of an error, with the class name unless it is one of Spark's or a BinlogError."""
    if not isinstance(error, (*SPARK_ERRORS, BinlogError)):
        return f"{type(error).__name__}: {error}"
    try:
        return str(error)
    except (OSError, Py4JError):  # py4j requests the text from the JVM, which has ended
        return JVM_ENDED


def _name(kind: type[BinlogError]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _read(text: str) -> BinlogError | None:
    """Decode an error; None for an unknown class or format, as an executor with another version may send."""
    try:
        parts = json.loads(base64.b64decode(text, validate=True))
        kind = _known(BinlogError).get(parts["class"])
        args = _with_node(str(parts["node"]), tuple(_unpacked(value) for value in parts["args"]))
        fields = {str(name): _unpacked(value) for name, value in parts["fields"].items()}
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if kind is None:
        return None
    # The class is not called, because many classes have keyword arguments, which an exception does not keep.
    ours = kind.__new__(kind)
    ours.args = args
    vars(ours).update(fields)
    return ours


def _with_node(node: str, args: tuple[object, ...]) -> tuple[object, ...]:
    """Append the node's name to the text if it is another machine, because addresses and files are relative to it."""
    if node == socket.gethostname() or not args or not isinstance(args[0], str):
        return args
    return f"{args[0]} (on {node})", *args[1:]


def _known(root: type[BinlogError]) -> dict[str, type[BinlogError]]:
    found = {_name(root): root}
    for kind in root.__subclasses__():
        found.update(_known(kind))
    return found


def _packed(value: object) -> object:
    """Encode a value as JSON; bytes, tuples, lists and dicts as {"kind": …}."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [_packed(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_packed(name), _packed(item)] for name, item in value.items()]}
    return str(value)  # only for display


def _unpacked(value: Any) -> object:
    if not isinstance(value, dict):
        return value
    ((kind, packed),) = value.items()
    if kind == "bytes":
        return base64.b64decode(packed, validate=True)
    if kind == "dict":
        return {_unpacked(name): _unpacked(item) for name, item in packed}
    if kind not in ("tuple", "list"):
        raise ValueError(kind)
    items = [_unpacked(item) for item in packed]
    return tuple(items) if kind == "tuple" else items


def reason_of(text: str) -> str:
    """Return the most informative line of Spark's text. In this order: the last error of a Python traceback, the
    innermost cause with a message, the exception that py4j reported, the first line with an exception's name, the first
    line."""
    head = text.partition("=== Streaming Query ===")[0]
    for pattern in (_RAISED, _CAUSE, _IN_JVM):
        found = pattern.findall(head)
        if found:
            return " ".join(str(found[-1]).split())
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    return next((line for line in lines if "Exception" in line), lines[0] if lines else "no reason given")
