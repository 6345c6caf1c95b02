"""Build hook: writes the commit a wheel is built from into it, as `binlog/COMMIT`, for `-V` and status pages.

Without git, or outside a checkout (an sdist that was unpacked), the file that an sdist brings along is kept.
"""

from __future__ import annotations

import subprocess
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
        if not (Path(self.root) / ".git").exists():
            return
        ran = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            self._folder = tempfile.TemporaryDirectory()
            made = Path(self._folder.name) / "COMMIT"
            made.write_text(ran.stdout)
            build_data["force_include"][str(made)] = PLACE[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()
