"""Structured logs in the text format of TiDB's tools (`K-08`): `[time] [LEVEL] [file:line] [message] [key=value]…`.

A program calls `setup` once. In an application that embeds the SDK and does not call it, lines go to the application's
own logging: to structlog if the application has configured it, otherwise to Python's `logging` as
`tidb_binlog.<component>`. They never go to stdout. A log file is rotated at 300 MB and old files are kept, as in the
original.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import structlog

from binlog.errors import ConfigError

ROTATE_BYTES_MAX = 300 * 1000 * 1000

LEVELS = ("debug", "info", "warn", "warning", "error", "fatal")
_SHOWN = {"warning": "WARN", "critical": "FATAL", "exception": "ERROR"}
LIBRARY_LOGGER = "tidb_binlog"
# A library logs nothing unless the application configures logging.
logging.getLogger(LIBRARY_LOGGER).addHandler(logging.NullHandler())
_PLAIN = re.compile(r'[^\s"=\[\]\\]+')

Logger = structlog.typing.FilteringBoundLogger


class RotatingFile:
    """A text file. When it exceeds `bytes_max`, it is renamed with the current time, and a new file is opened."""

    def __init__(self, path: Path, *, bytes_max: int = ROTATE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._file = self._open()

    def _open(self) -> TextIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a", encoding="utf-8")
        self._size = file.tell()
        return file

    def write(self, text: str) -> int:
        with self._lock:
            if self._size and self._size + len(text) > self._bytes_max:
                self._file.close()
                stamp = datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S.%f")
                self._path.rename(self._path.with_name(f"{self._path.stem}-{stamp}{self._path.suffix}"))
                self._file = self._open()
            self._size += len(text.encode())
            return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


def quote(value: object) -> str:
    """Return a value in the form for a line: unquoted if possible, otherwise as a JSON string."""
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def render_text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Format an event as one line of text. This is the last processor."""
    moment = datetime.now().astimezone()
    zone = moment.strftime("%z")
    level = str(event.pop("level", "info"))
    place = f"{event.pop('filename', '?')}:{event.pop('lineno', 0)}"
    parts = [
        f"{moment:%Y/%m/%d %H:%M:%S}.{moment.microsecond // 1000:03d} {zone[:3]}:{zone[3:]}",
        _SHOWN.get(level, level.upper()),
        place,
        quote(event.pop("event", "")),
    ]
    parts += [f"{key}={quote(value)}" for key, value in event.items()]
    return " ".join(f"[{part}]" for part in parts)


def setup(level: str = "info", file: str = "", *, stdout: bool = False) -> None:
    """Configure the process's logs.

    `level`: as in the flag -L. Without `file`, lines go to stderr, or to stdout if `stdout` is set. Raises ValueError
    for an unknown level, ConfigError for a file that cannot be written.
    """
    if level.lower() not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    try:
        target = cast(TextIO, RotatingFile(Path(file))) if file else (sys.stdout if stdout else sys.stderr)
    except OSError as error:
        raise ConfigError(f"log-file {file} cannot be written: {error.strerror}") from error
    place = structlog.processors.CallsiteParameter
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.CallsiteParameterAdder([place.FILENAME, place.LINENO]),
            structlog.processors.format_exc_info,
            render_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Logger:
    """Return a logger whose lines carry `component=name`."""
    return cast(Logger, _Lazy(name))


class _Lazy:
    """A logger that decides at each line where it goes: loggers are made at import, before logging is configured."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._library = structlog.wrap_logger(
            logging.getLogger(f"{LIBRARY_LOGGER}.{name}"),
            processors=[structlog.stdlib.filter_by_level, _library_line],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
        )

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            return getattr(structlog.get_logger(component=self._name), method)
        return getattr(self._library, method)


def _library_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Format `message key=value …` for Python's logging, with the caller's file and line."""
    options = {"stacklevel": _frames_of_structlog(), "exc_info": event.pop("exc_info", None)}
    message = str(event.pop("event", ""))
    return (" ".join([message, *(f"{key}={quote(value)}" for key, value in event.items())]),), options


def _frames_of_structlog() -> int:
    """Return the number of calls between Python's logging and the caller; the logger's methods differ in it."""
    frame, count = sys._getframe(3), 1  # the function of structlog that will call logging
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("structlog."):
        frame, count = frame.f_back, count + 1
    return count


EVERY_S = 60.0


@dataclass(slots=True, eq=False)
class Outage:
    """Logs a lasting failure: one line when it begins, one per minute, and one when it ends. Call `failed` at every
    failure and `over` at every success.

    `quiet_s`: a failure that lasts no longer than this is not logged as a warning; only `first`, if given, is logged
    when it begins. The end is logged with the duration if the beginning was logged.
    """

    _log: Logger
    _text: str
    _over: str
    _: KW_ONLY
    quiet_s: float = 0.0
    first: str = ""
    level: Literal["warning", "error"] = "warning"
    every_s: float = EVERY_S
    clock: Callable[[], float] = time.monotonic
    _since_s: float | None = None
    _told_s: float | None = None
    _is_told: bool = False

    @property
    def lasts_s(self) -> float:
        """Seconds since the failure began, or 0."""
        return 0.0 if self._since_s is None else self.clock() - self._since_s

    def failed(self, **facts: object) -> None:
        """Note a failure. `facts`: key=value pairs for the line, if one is logged."""
        now_s = self.clock()
        if self._since_s is None:
            self._since_s = now_s
            if self.first:
                self._is_told = True
                self._log.info(self.first, **facts)
        lasts_s = now_s - self._since_s
        if lasts_s < self.quiet_s or (self._told_s is not None and now_s - self._told_s < self.every_s):
            return
        if lasts_s > 0:
            facts["since_s"] = round(lasts_s, 1)
        self._told_s, self._is_told = now_s, True
        getattr(self._log, self.level)(self._text, **facts)

    def over(self, text: str = "", **facts: object) -> None:
        """Note a success. `text`: another message for the end."""
        if self._is_told:
            self._log.info(text or self._over, **facts, lasted_s=round(self.lasts_s, 1))
        self._since_s = self._told_s = None
        self._is_told = False

    @contextlib.contextmanager
    def catching(self, *kinds: type[Exception]) -> Iterator[None]:
        """Note an error of `kinds` in the block as a failure, and go on after the block; else note a success."""
        try:
            yield
        except kinds as error:
            self.failed(error=str(error))
        else:
            self.over()

    async def repeating(self, work: Callable[[], Awaitable[object]], pause_s: float, *kinds: type[Exception]) -> None:
        """Call `work` after every pause, until cancelled. An error of `kinds` is noted as a failure."""
        while True:
            await asyncio.sleep(pause_s)
            with self.catching(*kinds):
                await work()
