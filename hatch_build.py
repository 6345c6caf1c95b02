"""Build hook: writes commit and time of the build into a wheel, as `binlog/COMMIT`, for `-V` and status pages.

The program git is not needed. Outside a checkout (an sdist that was unpacked) the file that the sdist contains is kept.
"""

from __future__ import annotations

import os
import runpy
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = {"wheel": "binlog/COMMIT", "sdist": "proto/binlog/COMMIT"}


class CommitHook(BuildHookInterface):
    PLUGIN_NAME = "custom"
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a checkout knows its commit by itself, and it changes
            return
        version_module = runpy.run_path(str(Path(self.root) / "proto" / "binlog" / "runtime" / "version.py"))
        commit = version_module["checked_out"](Path(self.root))
        if commit:
            self._folder = tempfile.TemporaryDirectory()
            made = Path(self._folder.name) / "COMMIT"
            built_s = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
            made.write_text(f"{commit}\n{datetime.fromtimestamp(built_s, UTC):%Y-%m-%d %H:%M:%S}\n")
            build_data["force_include"][str(made)] = PLACE[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()
