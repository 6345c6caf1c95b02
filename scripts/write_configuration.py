"""Writes docs/configuration.md from the configuration models: `python scripts/write_configuration.py FILE`.

A test compares the committed page with what this writes today.
"""

from __future__ import annotations

import sys
from pathlib import Path

from binlog.config import reference_markdown
from drainer.config import FLAGS as DRAINER_FLAGS
from drainer.config import Config
from pump.config import FLAGS as PUMP_FLAGS
from pump.config import PumpConfig

HEAD = """# Configuration

Generated from the code by `make docs`; do not edit.

A flag beats an environment variable, that beats the TOML file (`-config FILE`), that beats the default. Flags take one dash or
two. Unknown keys, flags and positional arguments are refused. A key `a.b` stands in the file as `b` under `[a]`.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## pump\n",
        reference_markdown(PumpConfig, PUMP_FLAGS, env_prefix="PUMP_"),
        "\n## drainer\n",
        reference_markdown(Config, DRAINER_FLAGS, env_prefix="BINLOG_SERVER_"),
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: write_configuration.py FILE")
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
