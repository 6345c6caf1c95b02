"""Output formats of binlogctl: aligned columns, a JSON document, or the original's log lines.

Columns and JSON go to stdout and problems to stderr, so that stdout can be piped; log lines all go to stdout, as the
original's do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from binlog.runtime.log import get_logger

log = get_logger("binlogctl")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """One kind of row. `columns` maps a fact's name to its heading in the table; JSON holds every fact. `event` is the
    message of a log line, `line` which facts stand in it (None: all)."""

    name: str
    columns: Mapping[str, str]
    event: str
    line: Sequence[str] | None = None


class Output(Protocol):
    """Where a command's answer goes. `end` is called once, when the command is over, also after an error."""

    def rows(self, listing: Listing, rows: Sequence[Facts]) -> None:
        """The rows of one listing; an empty one is said, too."""

    def done(self, what: str, **facts: Any) -> None:
        """Report a completed action."""

    def problem(self, what: str, **facts: Any) -> None:
        """Report a problem of one node; the others are still listed."""

    def failed(self, command: str, text: str, exit_code: int) -> None:
        """Report why the command failed, at its end."""

    def end(self) -> None:
        """Print buffered output."""


class LogOutput:
    """A log line for each row, in the original's words where it has such a line."""

    def rows(self, listing: Listing, rows: Sequence[Facts]) -> None:
        for row in rows:
            shown = row if listing.line is None else {name: row[name] for name in listing.line}
            log.info(listing.event, **shown)
        if not rows:
            log.info(f"no {listing.name} to list")

    def done(self, what: str, **facts: Any) -> None:
        log.info(what, **facts)

    def problem(self, what: str, **facts: Any) -> None:
        log.error(what, **facts)

    def failed(self, command: str, text: str, exit_code: int) -> None:
        log.critical("fail to execute command", command=command, error=text)

    def end(self) -> None:
        pass


class TableOutput:
    """Aligned columns; a fact that is None or missing is `-`."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def rows(self, listing: Listing, rows: Sequence[Facts]) -> None:
        if not rows:
            self._out.write(f"no {listing.name} to list\n")
            return
        lines = [list(listing.columns.values())]
        lines += [[_cell(row.get(name)) for name in listing.columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self._out.write("  ".join(cells).rstrip() + "\n")

    def done(self, what: str, **facts: Any) -> None:
        self._out.write(_sentence(what, facts))

    def problem(self, what: str, **facts: Any) -> None:
        self._out.flush()
        self._err.write(_sentence(what, facts))

    def failed(self, command: str, text: str, exit_code: int) -> None:
        self._out.flush()
        self._err.write(f"binlogctl {command}: {text}\n")

    def end(self) -> None:
        self._out.flush()


class JsonOutput:
    """`{"pumps": [{…}, …]}`: a key for each listing, `done` for what was carried out, `problems` and `error` if there
    were any. With `line` the document is one line, and says at which time it was made."""

    def __init__(self, out: TextIO, *, line: bool = False) -> None:
        self._out = out
        self._line = line
        self._document: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")} if line else {}

    def rows(self, listing: Listing, rows: Sequence[Facts]) -> None:
        self._document.setdefault(listing.name.replace(" ", "_"), []).extend(rows)

    def done(self, what: str, **facts: Any) -> None:
        self._document.setdefault("done", []).append({"what": what, **facts})

    def problem(self, what: str, **facts: Any) -> None:
        self._document.setdefault("problems", []).append({"what": what, **facts})

    def failed(self, command: str, text: str, exit_code: int) -> None:
        self._document["error"] = {"command": command, "text": text, "exit_code": exit_code}

    def end(self) -> None:
        json.dump(self._document, self._out, indent=None if self._line else 2, ensure_ascii=False, default=str)
        self._out.write("\n")
        self._out.flush()


def form_of(form: str) -> str:
    """One of options.FORMATS; `auto` is a table at a terminal and log lines elsewhere."""
    if form == "auto":
        return "table" if sys.stdout.isatty() else "log"
    return form


def open_output(form: str) -> Output:
    """`form`: see form_of."""
    form = form_of(form)
    if form == "json":
        return JsonOutput(sys.stdout)
    if form == "table":
        return TableOutput(sys.stdout, sys.stderr)
    return LogOutput()


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def _sentence(what: str, facts: Facts) -> str:
    text = ", ".join(f"{name.replace('_', ' ')} {_cell(value)}" for name, value in facts.items())
    return f"{what}: {text}\n" if text else f"{what}\n"
