"""Output formats of binlogctl: aligned columns, a JSON document, or the original's log lines.

Columns and JSON go to stdout and problems to stderr, so that stdout can be piped. Log lines all go to stdout, as the
original's do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO, TypeAlias

from binlog.runtime.log import get_logger

log = get_logger("binlogctl")

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The format of one kind of row.

    `columns` maps the name of a fact to its heading in the table; JSON contains every fact. `event` is the message of a
    log line, `line` the facts in it (None: all).
    """

    name: str
    columns: Mapping[str, str]
    event: str
    line: Sequence[str] | None = None


def headed(*facts: str, **headings: str) -> dict[str, str]:
    """Return the columns of a Listing. The heading of a fact is its name in capitals, unless another is given."""
    return {fact: headings.get(fact, fact.replace("_", " ").upper()) for fact in facts}


class LogOutput:
    """Writes a log line for each row, with the original's text if the original has such a line."""

    def rows(self, listing: Listing, rows: Sequence[Facts]) -> None:
        """Print the rows of one listing. An empty listing is reported as such."""
        for row in rows:
            shown = row if listing.line is None else {name: row[name] for name in listing.line}
            log.info(listing.event, **shown)
        if not rows:
            log.info(f"no {listing.name} to list")

    def done(self, what: str, **facts: Any) -> None:
        """Report a completed action."""
        log.info(what, **facts)

    def problem(self, what: str, **facts: Any) -> None:
        """Report a problem with one node. The other nodes are still listed."""
        log.error(what, **facts)

    def failed(self, command: str, text: str, exit_code: int) -> None:
        """Report, at the end, why the command failed."""
        log.critical("fail to execute command", command=command, error=text)

    def end(self) -> None:
        """Print buffered output. Called once when the command is over, also after an error."""


class TableOutput:
    """Writes aligned columns. A fact that is None or missing is shown as `-`."""

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
    """Writes one document, `{"pumps": [{…}, …]}`.

    It has a key for each listing, `done` for completed actions, and `problems` and `error` if there were any. With
    `line` the document is a single line and contains its time.
    """

    def __init__(self, out: TextIO, *, line: bool) -> None:
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


Output: TypeAlias = LogOutput | TableOutput | JsonOutput  # the destination of a command's output


def form_of(form: str) -> str:
    """Return the format: for `auto`, table at a terminal and log elsewhere."""
    if form == "auto":
        return "table" if sys.stdout.isatty() else "log"
    return form


def open_output(form: str, out: TextIO, err: TextIO, *, line: bool = False) -> Output:
    """Return the output for a format as `form_of` returns it. Log lines go to the log."""
    if form == "json":
        return JsonOutput(out, line=line)
    return TableOutput(out, err) if form == "table" else LogOutput()


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def _sentence(what: str, facts: Facts) -> str:
    text = ", ".join(f"{name.replace('_', ' ')} {_cell(value)}" for name, value in facts.items())
    return f"{what}: {text}\n" if text else f"{what}\n"
