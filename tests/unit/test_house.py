"""What keeps the source easy to read: sizes, names, and a README whose map is complete and true."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("proto/binlog", "pump", "pumpclient", "drainer", "demo")
MODULE_LINES_MAX = 600
# These three numbers may only fall. A module is one idea, not one function that is called from one place; a seam that a
# test needs is an argument, not an attribute of a module that the test replaces.
DRAINER_MODULES_MAX = 246
REPLACED_ATTRIBUTES_MAX = 147
BARE_RULES_MAX = 73  # rules of docs/correctness.md that are cited by their number alone
FUNCTION_LINES_MAX = 70
# Names that say where something was put and not what it is.
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "base_utils", "tools", "stuff"}
README = (ROOT / "README.md").read_text()


@cache
def modules() -> dict[Path, str]:
    """Every module of the programs that is written by hand, from the root, with its text."""
    found = sorted(path for top in PROGRAMS for path in (ROOT / top).rglob("*.py") if "_pb2" not in path.name)
    assert len(found) > 300
    return {path.relative_to(ROOT): path.read_text() for path in found}


def test_modules_have_no_more_than_allowed_lines() -> None:
    long = {str(path): lines for path, text in modules().items() if (lines := text.count("\n")) > MODULE_LINES_MAX}
    assert not long


def test_functions_have_no_more_than_allowed_lines() -> None:
    long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, text in modules().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_drainer_does_not_gain_modules() -> None:
    assert sum(path.parts[0] == "drainer" for path in modules()) <= DRAINER_MODULES_MAX


def test_monkeypatched_attributes_do_not_gain_in_number() -> None:
    found = [text.count("monkeypatch.setattr") for path in (ROOT / "tests").rglob("*.py") if (text := path.read_text())]
    assert sum(found) - 1 <= REPLACED_ATTRIBUTES_MAX  # one is the line above


def test_rules_cited_without_their_subject_do_not_gain_in_number() -> None:
    """Write `rule 12: REPLACE evicts only stale rows`, in the words of the table in docs/correctness.md."""
    bare = [
        (path, found[0]) for path, text in modules().items() for found in re.finditer(r"\brules? \d+(?!\d|:| \()", text)
    ]
    assert len(bare) <= BARE_RULES_MAX


def test_number_of_examples_is_set_by_the_profile_alone() -> None:
    """A number in a test would hold for the quick profile of `make test` as well."""
    allowed = {ROOT / "tests" / "conftest.py", ROOT / "tests" / "support" / "examples.py", Path(__file__)}
    found = [
        path for path in (ROOT / "tests").rglob("*.py") if path not in allowed and "max_examples" in path.read_text()
    ]
    assert not found


def test_module_names_are_specific() -> None:
    assert not [str(path) for path in modules() if EMPTY_NAMES & {path.stem, *path.parent.parts}]


def test_modules_have_docstrings() -> None:
    silent = [str(path) for path, text in modules().items() if text.strip() and not ast.get_docstring(ast.parse(text))]
    assert not silent


def test_health_check_suppressions_include_too_slow() -> None:
    """A list in a test replaces that of the profile (tests/conftest.py), which has too_slow."""
    lists = [
        (str(path.relative_to(ROOT)), found)
        for path in (ROOT / "tests").rglob("*.py")
        for found in re.findall(r"suppress_health_check=(\[[^]]*\])", path.read_text())
    ]
    assert not [place for place, found in lists if "HealthCheck.too_slow" not in found]


def _named() -> list[str]:
    """The paths that README's map and its route of a binlog name."""
    part = README[README.index("## Where things are") : README.index("## Working on it")]
    return re.findall(r"`((?:proto|pump|pumpclient|drainer|demo|bench|deploy|docs|tests)/[\w./]*)`", part)


def test_readme_map_names_existing_paths() -> None:
    assert _named()
    assert not [name for name in _named() if not (ROOT / name).exists()]


def test_readme_map_names_every_package() -> None:
    """Each folder with modules of its own, or one that holds it and is named."""
    named = {name.rstrip("/") for name in _named()}
    tops = {top for top in PROGRAMS if top != "drainer"}
    rooms = {str(path.parent) for path in modules() if path.parent != Path("drainer")}
    drainer = {room for room in rooms if room.startswith("drainer/") and room.count("/") == 1}
    assert not (tops | drainer) - named


def _route() -> list[str]:
    start = README.index("One binlog from a call to its destination")
    return re.findall(r"`(\w+/[\w/]+\.py)`", README[start : README.index("\nMore: ", start)])


def _imports(path: str) -> set[str]:
    """What a module imports, as paths from the root."""
    tree = ast.parse((ROOT / path).read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    names = {f"proto.{name}" if name.startswith("binlog.") else name for name in found}
    return {name.replace(".", "/") + ".py" for name in names}


def test_readme_binlog_route_modules_import_each_other() -> None:
    """Each station imports another one or is imported by it; between pump and drainer lies the network."""
    route = _route()
    assert len(route) == len(set(route)) > 20
    links = {station: _imports(station) & set(route) for station in route}
    alone = [s for s in route if not links[s] and not any(s in found for found in links.values())]
    assert not alone
    program = [station.split("/")[0] for station in route]
    assert program == sorted(program, key=["proto", "pump", "drainer"].index)
