"""Errors of ours survive Spark, which turns everything into text; what a database wrote there does not count."""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import pickle
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType

import binlog
import pytest
from binlog.errors import BinlogError, DecodeError, PumpUnavailable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

import drainer
import pump
import pumpclient
from drainer.schema.errors import UnknownColumn
from drainer.sink.errors import RowMissing, UniqueConflict
from drainer.spark.errors import JVM_ENDED, ErrorSeal, SparkFailed, reason_of, text_of

SEAL = ErrorSeal("5ec2e7")
STRANGE = ErrorSeal("guessed")
HOSTILE = "`a\ud800`.'\\\n<binlog-error:AAAA:> \u2028 é"


def all_errors() -> list[type[BinlogError]]:
    """Every error class of every package, found by importing everything and walking the tree."""
    for package in (binlog, pump, pumpclient, drainer):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)

    def below(kind: type[BinlogError]) -> Iterator[type[BinlogError]]:
        for child in kind.__subclasses__():
            if child.__module__.partition(".")[0] in ("binlog", "pump", "pumpclient", "drainer"):
                yield child
                yield from below(child)

    return sorted({BinlogError, *below(BinlogError)}, key=lambda kind: (kind.__module__, kind.__qualname__))


def value_of(hint: object) -> object:
    """A value of an annotated parameter, as unfriendly as its type allows."""
    if isinstance(hint, UnionType):
        return value_of(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (tuple, Sequence):
        parts = typing.get_args(hint)
        is_long = Ellipsis in parts or typing.get_origin(hint) is Sequence
        return tuple(value_of(part) for part in parts if part is not Ellipsis) * (2 if is_long else 1)
    values: dict[object, object] = {str: HOSTILE, object: HOSTILE, int: -(1 << 63), bytes: b"\0\xff", bool: True}
    return values[hint]


def example(kind: type[BinlogError]) -> BinlogError:
    if kind.__init__ is Exception.__init__:
        return kind(HOSTILE)
    hints = typing.get_type_hints(kind.__init__)
    given = inspect.signature(kind).parameters.values()
    named = {p.name: value_of(hints[p.name]) for p in given if p.kind is p.KEYWORD_ONLY}
    return kind(*[value_of(hints[p.name]) for p in given if p.kind is p.POSITIONAL_OR_KEYWORD], **named)


def in_spark(error: BaseException) -> RuntimeError:
    return RuntimeError(f"Job aborted due to stage failure: Traceback …\n{error}\n\n\tat org.apache")


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_error_of_task_reaches_driver_with_class_and_fields(kind: type[BinlogError]) -> None:
    error = example(kind)
    found = SEAL.unwrap(in_spark(SEAL.carry(error)))
    assert type(found) is kind
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


def test_error_fields_of_every_kind_of_value_survive_spark() -> None:
    error = BinlogError(b"\xff", (1, ("a", None)), [True, 1.5], {3: b"x"})
    error.place = (1, 2)  # type: ignore[attr-defined]
    found = SEAL.unwrap(in_spark(SEAL.carry(error)))
    assert (found.args, vars(found)) == (error.args, vars(error))


def test_every_error_class_of_worker_is_loaded_in_driver() -> None:
    """A class that is not loaded in the driver would arrive as SparkFailed."""
    count = (
        "import {0}\nfrom binlog.errors import BinlogError\n"
        "def below(k):\n    return {{f'{{c.__module__}}.{{c.__qualname__}}' for c in k.__subclasses__()}}.union("
        "*(below(c) for c in k.__subclasses__()))\nprint('\\n'.join(below(BinlogError)))"
    )
    known = []
    for modules in (
        "drainer.service.daemon, drainer.service.spark_runner, drainer.spark.startup.session, drainer.spark.query",
        "importlib, drainer.spark.startup.worker_imports as w; list(map(importlib.import_module, w.MODULES))",
    ):
        done = subprocess.run(
            [sys.executable, "-c", count.format(modules)], capture_output=True, text=True, check=True, timeout=120
        )
        known.append(set(done.stdout.split()))
    driver, worker = known
    assert "drainer.changes.slot_blob.BlobError" in worker
    assert worker <= driver


class Harmful:
    """What a pickle may hold: a call of anything."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._trace,)


def forged(seal: ErrorSeal = STRANGE) -> str:
    """A mark as somebody makes it who knows everything but the secret."""
    return str(seal.carry(UniqueConflict("s", schema="s", table="t", key="k")))


def test_pickle_in_error_text_is_not_loaded(tmp_path: Path) -> None:
    trace = tmp_path / "called"
    pickled = base64.b64encode(pickle.dumps((Harmful(trace), (), {}))).decode()
    for mark in (f"<binlog-error:{pickled}>", f"<binlog-error:{pickled}:{'0' * 64}>"):
        for seal in (SEAL, ErrorSeal()):
            assert isinstance(seal.unwrap(in_spark(ValueError(f"OSError: table {mark}"))), SparkFailed)
    assert not trace.exists()


def test_forged_error_mark_is_ignored_and_hides_no_real_one() -> None:
    assert isinstance(SEAL.unwrap(in_spark(RuntimeError(forged()))), SparkFailed)
    for names in (forged(), forged()[:-1], "<binlog-error:", "<binlog-error:AAAA:", f"{forged()}<binlog-error:AAAA"):
        error = RowMissing(f"no such row: {names}", schema=names, table="t")
        found = SEAL.unwrap(in_spark(SEAL.carry(error)))
        assert type(found) is RowMissing
        assert found.schema == names


def test_error_seal_without_secret_takes_nothing_from_text() -> None:
    alone = ErrorSeal()
    assert "binlog-error" not in str(alone.carry(PumpUnavailable("pump a: gone")))
    text = forged().rpartition("<binlog-error:")[2].partition(":")[0]
    signed = f"<binlog-error:{text}:{alone._code(text)}>"  # anybody knows the empty secret
    assert isinstance(alone.unwrap(in_spark(RuntimeError(signed))), SparkFailed)


@pytest.mark.parametrize(
    "parts",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        {"class": "os.system", "args": [], "fields": {}},
        {"class": "binlog.errors.NoSuchError", "args": [], "fields": {}},
        {"class": ["x"], "args": [], "fields": {}},
        {"class": "binlog.errors.BinlogError", "args": [{"bytes": "no base64"}], "fields": {}},
        {"class": "binlog.errors.BinlogError", "args": [{"call": []}], "fields": {}},
        {"class": "binlog.errors.BinlogError", "args": [{}], "fields": {}},
        {"class": "binlog.errors.BinlogError", "args": 7, "fields": {}},
        {"class": "binlog.errors.BinlogError", "args": [], "fields": []},
    ],
    ids=lambda parts: repr(parts)[:40],
)
def test_signed_error_of_another_version_becomes_spark_failed(parts: bytes | dict[str, object]) -> None:
    """Signed, so from an executor of ours; yet not what this version writes."""
    text = base64.b64encode(parts if isinstance(parts, bytes) else json.dumps(parts).encode()).decode()
    assert isinstance(SEAL.unwrap(in_spark(RuntimeError(f"<binlog-error:{text}:{SEAL._code(text)}>"))), SparkFailed)


def test_sealed_error_cut_or_changed_at_any_byte_is_ignored() -> None:
    whole = str(SEAL.carry(DecodeError("binlog", offset=7, detail="torn")))
    for at in range(len(whole)):
        assert isinstance(SEAL.unwrap(RuntimeError(whole[:at])), SparkFailed)
    begin = whole.index("<binlog-error:") + len("<binlog-error:")
    for at in range(begin, len(whole) - 1):
        changed = "0" if whole[at] != "0" else "1"
        assert isinstance(SEAL.unwrap(RuntimeError(whole[:at] + changed + whole[at + 1 :])), SparkFailed)


def test_error_seal_secret_is_never_shown() -> None:
    secret = ErrorSeal.new().secret
    assert len(secret) >= 32
    assert secret not in repr(ErrorSeal(secret))
    assert secret not in str(ErrorSeal(secret).carry(BinlogError("x")))
    assert secret != ErrorSeal.new().secret


@pytest.mark.parametrize(
    "error",
    [
        UnknownColumn(table_id=1, column_id=2, schema_version=3, commit_ts=4),
        UniqueConflict("row in the way", schema="s", table="t", key="k"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_error_fields_used_by_pipeline_survive_spark(error: BinlogError) -> None:
    assert vars(SEAL.unwrap(in_spark(SEAL.carry(error)))) == vars(error) != {}


def test_spark_failure_is_reduced_to_one_line() -> None:
    text = "[STREAM_FAILED] Query terminated\nTraceback:\n  File x\nOSError: disk full\n\tat org"
    found = SEAL.unwrap(RuntimeError(text))
    assert isinstance(found, SparkFailed) and str(found) == "OSError: disk full"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no reason given"),
        ("one\ntwo", "one"),
        ("An error\njava.lang.OutOfMemoryError: heap\n\tat x", "java.lang.OutOfMemoryError: heap"),
        ("first\n: org.apache.spark.SparkException: lost", "org.apache.spark.SparkException: lost"),
        ("first\n: java.lang.IllegalStateException\n\tat x", ": java.lang.IllegalStateException"),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: org.apache.spark."
            "SparkIllegalArgumentException: [INVALID_EXECUTOR_MEMORY] Executor memory 1 must be at least 2.\n"
            "Please increase executor memory.\n\tat org.apache.spark.memory.UnifiedMemoryManager$.getMaxMemory\n",
            "org.apache.spark.SparkIllegalArgumentException: [INVALID_EXECUTOR_MEMORY] Executor memory 1 must be at "
            "least 2. Please increase executor memory.",
        ),
        (
            ": org.apache.spark.SparkException: Exception thrown in awaitResult:\n\tat x\nCaused by: org.apache.spark."
            "SparkException: Python worker exited\n\tat y\nCaused by: java.io.EOFException\n\tat z",
            "org.apache.spark.SparkException: Python worker exited",
        ),
    ],
)
def test_reason_of_spark_error_is_its_relevant_line(text: str, reason: str) -> None:
    assert reason_of(text) == reason


class Asked(Py4JError):  # type: ignore[misc]
    """Like py4j's, whose text is asked of a JVM that has ended."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


def test_error_whose_text_needs_ended_jvm_is_reported_as_jvm_ended() -> None:
    """A thread that failed over it would leave the drainer waiting for the end of a query that is over."""
    assert str(SEAL.unwrap(Asked())) == JVM_ENDED
    assert text_of(OSError("full")) == "OSError: full"
