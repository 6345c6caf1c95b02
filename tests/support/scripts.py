"""Scripts of the project, as modules."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.support.servers import ROOT


def write_configuration() -> Any:
    """The script that writes docs/configuration.md."""
    return _loaded("write_configuration")


def write_versions() -> Any:
    """The script that writes the values in docs/versions.md."""
    return _loaded("write_versions")


def _loaded(name: str) -> Any:
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script
