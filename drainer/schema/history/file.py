"""DDL jobs from a file: the body of TiDB's /ddl/history (a JSON array), or one JSON job per line."""

from __future__ import annotations

import json
from pathlib import Path

from binlog.errors import DecodeError
from binlog.tidb.job import Job

from drainer.schema.errors import HistoryBroken

_BETWEEN = " \t\r\n,"


class FileSource:
    """Reads the file again when its size or modification time has changed, so it may be appended to."""

    complete = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def describe(self) -> str:
        return str(self._path)

    async def refresh(self, wanted: int | None = None) -> list[Job]:
        """All jobs of the file, or none if it has not changed. HistoryBroken names file and line."""
        try:
            status = self._path.stat()
            seen = (status.st_size, status.st_mtime_ns)
            if seen == self._seen:
                return []
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HistoryBroken(str(self._path), f"cannot be read: {error}") from error
        jobs = parse_jobs(text, str(self._path))
        self._seen = seen
        return jobs


def parse_jobs(text: str, name: str) -> list[Job]:
    """Jobs of a JSON array, or of objects one after another. HistoryBroken names `name` and the line."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    in_array = text[at : at + 1] == "["
    if in_array:
        at = _skip(text, at + 1)
    jobs: list[Job] = []
    line, counted = 1, 0
    while at < len(text) and not (in_array and text[at] == "]"):
        line += text.count("\n", counted, at)
        counted = at
        try:
            document, end = decoder.raw_decode(text, at)
            if not isinstance(document, dict):
                raise HistoryBroken(f"{name}, line {line}", f"a job expected, not {text[at : at + 20]!r}")
            jobs.append(Job.from_json(document))
        except json.JSONDecodeError as error:
            raise HistoryBroken(f"{name}, line {error.lineno}", f"not JSON: {error.msg}") from error
        except DecodeError as error:
            raise HistoryBroken(f"{name}, line {line}", str(error)) from error
        at = _skip(text, end)
    if in_array and at >= len(text):
        raise HistoryBroken(f"{name}, line {text.count(chr(10)) + 1}", "the array does not end")
    return jobs


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
    return at
