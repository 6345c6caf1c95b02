"""Writes docs/configuration.md, and the table of the original's settings in docs/compatibility.md, from the
configuration models: `python scripts/write_configuration.py DOCS`, a folder.

A test compares the committed pages with the output of this script.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_origin

from binlog.runtime.command_line import Flag, Key, default_text, settings, variable
from pydantic import BaseModel

from drainer.arbiter.config import FLAGS as ARBITER_FLAGS
from drainer.arbiter.config import ArbiterConfig
from drainer.config import FLAGS as DRAINER_FLAGS
from drainer.config import Config
from drainer.reparo.config import FLAGS as REPARO_FLAGS
from drainer.reparo.config import ReparoConfig
from pump.config import FLAGS as PUMP_FLAGS
from pump.config import PumpConfig
from pumpclient.ctl.options import COMMANDS, EXIT_CODES, Options

HEAD = """# Configuration

Generated from the code by `make docs`; do not edit.

A setting is read from these places; the first one that has it counts:

1. the flag on the command line,
2. the environment variable,
3. the TOML file (`-config FILE`),
4. the default.

Flags have one dash or two, as in `-gc 8h` or `-gc=8h`. A switch without a value means true; `-sync-ddl=false` turns it
off. Unknown keys, flags and positional arguments are refused. A key `a.b` is written in the file as `b` under `[a]`;
`[[a.b]]` is a table that may occur several times.

Sizes are bytes or texts such as `42 MB` (42 000 000) or `10 GiB`. Durations are texts such as `8h`, `30m`, `1m30s`. A
TSO is TiDB's timestamp: Unix milliseconds × 2^18 plus a counter.
"""

CTL = """
## binlogctl

binlogctl reads no file and no environment, except `BINLOG_SECRET_KEY`. The command is the first word or `-cmd`.
"""

DEMO = """
## demo

Options are passed as `make demo DEMO_ARGS="--seconds 20"`; `python -m demo -h` lists them. `make demo-kafka` and
`make demo-lake` have the same ones.
"""


BEGIN, END = "<!-- settings: made by `make docs` -->", "<!-- end of settings -->"


def reference_markdown(model: type[BaseModel], flags: Sequence[Flag] = (), *, env_prefix: str = "") -> str:
    """Return a table of every setting for docs/configuration.md: key, flag, variable, default, meaning."""
    by_path: dict[Key, list[Flag]] = {}
    for flag in flags:
        if not flag.ignored:
            by_path.setdefault(flag.path, []).append(flag)
    rows = ["| key | flag | environment | default | meaning |", "|---|---|---|---|---|"]
    for path, info in settings(model):
        found = by_path.get(path, [])
        key = ".".join(path)
        tables = _tables_of(info.annotation)
        cells = (
            f"`[[{key}]]`" if tables else f"`{key}`",
            ", ".join(f"`-{flag.name}`" for flag in found),
            ", ".join(f"`{variable(env_prefix, flag.name)}`" for flag in found) if env_prefix else "",
            _code(default_text(info)),
            next((flag.help for flag in found if flag.help), info.description or ""),
        )
        rows.append(_row(cells))
        if tables is not None:
            rows += [
                _row((f"`{key}.{'.'.join(inner)}`", "", "", _code(default_text(field)), field.description or ""))
                for inner, field in settings(tables)
            ]
    return "\n".join(rows)


def _tables_of(annotation: object) -> type[BaseModel] | None:
    """Return the model of the tables in a list of tables (`[[name]]` in TOML)."""
    inner = next(iter(get_args(annotation)), None) if get_origin(annotation) in (tuple, list) else None
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _code(text: str) -> str:
    return f"`{text}`" if text and not text.startswith("(") else text


def _row(cells: Sequence[str]) -> str:
    escaped = (
        c.replace("|", "\\|") if c.startswith("`") else c.replace("|", "\\|").replace("<", "&lt;") for c in cells
    )
    return f"| {' | '.join(escaped)} |"


def binlogctl_tables() -> str:
    """Return the tables of commands, flags and exit codes for docs/configuration.md."""
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text.replace('<', '&lt;')} |" for name, text in COMMANDS.items()]
    lines += ["", "| flag | default | meaning |", "|---|---|---|"]
    for (name,), info in settings(Options):
        default = default_text(info).removesuffix("false")
        lines.append(f"| `-{name}` | {f'`{default}`' if default else ''} | {info.description} |")
    lines += ["", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    return "\n".join(lines)


def page() -> str:
    """Return the complete page."""
    parts = [
        HEAD,
        "## pump\n",
        reference_markdown(PumpConfig, PUMP_FLAGS, env_prefix="PUMP_"),
        "\n## drainer\n",
        reference_markdown(Config, DRAINER_FLAGS, env_prefix="BINLOG_SERVER_"),
        "\n## reparo\n",
        reference_markdown(ReparoConfig, REPARO_FLAGS, env_prefix="REPARO_"),
        "\n## arbiter\n",
        reference_markdown(ArbiterConfig, ARBITER_FLAGS, env_prefix="BINLOG_SERVER_"),
        CTL,
        binlogctl_tables(),
        DEMO,
    ]
    return "\n".join(parts).rstrip() + "\n"


def with_table(text: str) -> str:
    """Return the compatibility page with its table of settings made again: all that are there for the original's, or
    TiCDC's, files alone."""
    rows = ["| `drainer.toml` | here |", "|---|---|"]
    for line in reference_markdown(Config, DRAINER_FLAGS, env_prefix="BINLOG_SERVER_").splitlines():
        found = re.match(r"\| (\S+) \|.*\| ((?:[a-z, ]+: )?(?:accepted, without effect|must be ).*) \|", line)
        if found is not None:
            rows.append(f"| {found[1]} | {found[2]} |")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{chr(10).join(rows)}\n\n{END}{after}"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: write_configuration.py DOCS")
    docs = Path(sys.argv[1])
    (docs / "configuration.md").write_text(page())
    compatibility = docs / "compatibility.md"
    compatibility.write_text(with_table(compatibility.read_text()))


if __name__ == "__main__":
    main()
