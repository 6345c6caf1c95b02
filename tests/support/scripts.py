"""Scripts of the project, as modules."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.support.servers import ROOT


def write_configuration() -> Any:
    """The script that writes docs/configuration.md."""
    found = importlib.util.spec_from_file_location("write_configuration", ROOT / "scripts" / "write_configuration.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script
