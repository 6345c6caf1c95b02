"""Hooks of MkDocs for pages outside of docs/ and for links to source files.

`pump/FORMAT.md`, `deploy/README.md` and the README become pages. A link to any other file outside of docs/ works only
in a checkout; on the site it becomes the file's path as text. A link to a file that does not exist ends the build with
an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "deploy/README.md": "deploy.md", "pump/FORMAT.md": "pump-format.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of one page, except in blocks of code."""
    place = _place(page.file.src_uri)
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_linked(markdown[at : fence.start()], place), fence.group()]
        at = fence.end()
    return "".join([*parts, _linked(markdown[at:], place)])


def _place(page: str) -> Path:
    """Return the file of the checkout from which a page is made."""
    return next((ROOT / source for source, made in PAGES.items() if made == page), ROOT / "docs" / page)


def _linked(text: str, place: Path) -> str:
    def link(match: re.Match[str]) -> str:
        words, target, part = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        file = Path(os.path.normpath(place.parent / target))
        if not file.exists():
            raise PluginError(f"{place.relative_to(ROOT)} links to {target}, which does not exist")
        inside = file.relative_to(ROOT).as_posix()
        if inside in PAGES:
            return f"[{words}]({PAGES[inside]}{part})"
        if file.parent == ROOT / "docs" and file.suffix == ".md":
            return f"[{words}]({file.name}{part})"
        shown = f"`{inside}`"
        return words if words.strip("`") == inside or inside.endswith(words.strip("`")) else f"{words} ({shown})"

    return _LINK.sub(link, text)
