"""Build hook: writes the commit a wheel is built from into it, as `binlog/COMMIT`, for `-V` and status pages.

The program git is not needed. Outside a checkout (an sdist that was unpacked) the file that the sdist contains is kept.
"""

from __future__ import annotations

import runpy
import tempfile
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
            made.write_text(f"{commit}\n")
            build_data["force_include"][str(made)] = PLACE[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()
