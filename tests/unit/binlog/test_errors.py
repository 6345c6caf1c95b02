"""Errors travel between processes (Spark's workers pickle them) and keep upstream's texts."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
from binlog import errors


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.DecodeError("row", offset=7, detail="cut"), "row: cut at byte 7"),
        (errors.ClusterMismatch.of(1, 2), "cluster ID are mismatch, 1 vs 2"),
        (errors.PurgedPosition.of(3, 9), "binlogs after ts 3 may be gone: everything up to ts 9 was purged"),
        (errors.LogBroken("fsync of 000001.vlog failed"), "fsync of 000001.vlog failed"),
    ],
)
def test_errors_keep_text_of_original_when_pickled(error: errors.BinlogError, text: str) -> None:
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == text


def test_all_errors_derive_from_binlog_error() -> None:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert all(issubclass(e, errors.BinlogError) for e in found)


def test_without_frames_releases_frames_of_error_and_its_causes() -> None:
    """Neither of its own frames nor of those of the errors before it; also if an error led to itself."""

    class Held:
        pass

    def failed() -> tuple[errors.BinlogError, weakref.ref[Held]]:
        held = Held()
        stored: list[errors.BinlogError] = []
        try:
            try:
                int("none")
            except ValueError as error:
                raise errors.LogBroken("text") from error
        except errors.BinlogError as error:
            assert error.__cause__ is not None
            error.__cause__.__context__ = error
            stored.append(errors.without_frames(error))
        return stored[0], weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        error, held = failed()
        assert held() is None and str(error) == "text" and isinstance(error.__cause__, ValueError)
    finally:
        gc.enable()
