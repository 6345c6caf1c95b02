"""One table chooses a destination, and nobody else outside a destination's own package knows its name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from pydantic import ValidationError

import drainer
from drainer.sink import registry
from drainer.sink.base import DerivesDdl, Wants
from drainer.sink.registry import sections, taken
from drainer.sink.settings import SyncerSettings, ToSection

ROOT = Path(drainer.__file__).parent
MINIMAL = {"kafka": {"addresses": ["nowhere:9092"], "topic": "t"}}
PACKAGES = sorted(path.name for path in (ROOT / "sink").iterdir() if (path / "__init__.py").exists())


# Commands of their own, which read a topic and write a database: they are for these kinds alone.
COMMANDS = ("arbiter", "kafka_check", "kafka_consumer", "kafka_reading")
# Reads upstream, which is a TiDB whatever the destination is, with the client of servers.
UPSTREAM = ("ranges", "upstream.py")


def modules() -> Iterator[Path]:
    """Those of the drainer that are no destination's own, and not the table."""
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).parts
        if place[0] in COMMANDS or place == UPSTREAM:
            continue
        if place[0] == "lake" or (
            place[:1] == ("sink",) and (place[1] in PACKAGES or place[1:] in (("registry.py",), ("memory.py",)))
        ):
            continue
        yield path


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names of destinations that something is compared with, matched with, or looked up by; not where binlogs come
    from, which is `source`."""
    names = {*registry.KINDS, *PACKAGES}
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            of_source = isinstance(node.left, ast.Attribute) and node.left.attr == "source"
            asked = [] if of_source else [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Subscript):
            is_type = isinstance(node.value, ast.Name) and node.value.id == "Literal"
            asked = [] if is_type else [node.slice]
        elif isinstance(node, ast.Dict):
            asked = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Call):
            asked = (
                node.args if isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "get") else []
            )
        for one in asked:
            for part in ast.walk(one):
                if isinstance(part, ast.Constant) and str(part.value).rstrip(":/") in names:
                    yield part.lineno, str(part.value)


def test_no_module_outside_destinations_compares_db_type() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name!r}"
        for path in modules()
        for line, name in compared(ast.parse(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "if to.db_type == 'sqlite': pass",
        "if db_type in ('mysql', 'tidb'): pass",
        "{'mariadb': 1}[kind]",
        "match kind:\n    case 'tidb': pass",
        "place.startswith('sqlite:')",
    ],
)
def test_db_type_check_finds_each_form_of_comparison(source: str) -> None:
    assert list(compared(ast.parse(source)))


def test_no_module_outside_destinations_imports_their_packages() -> None:
    own = ("drainer.lake", *(f"drainer.sink.{name}" for name in (*PACKAGES, "memory")))
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{path.relative_to(ROOT)}: {name}" for name in named if name.startswith(own)]
    assert not found


@pytest.mark.parametrize("db_type", registry.KINDS)
def test_every_kind_of_sink_is_made_without_creating_files(db_type: str, tmp_path: Path) -> None:
    path = {key: str(tmp_path / "x") for key in ("path", "dir") if key in keys(db_type)}
    to = registry.section(db_type).model_validate({**MINIMAL.get(db_type, {}), **path})
    to.check()
    made = registry.sink(db_type, to, SyncerSettings())
    assert made.wants in Wants
    assert made.name
    assert to.address()
    assert not list(tmp_path.iterdir())


def test_only_a_lake_is_shown_tables_that_are_not_replicated_any_more() -> None:
    assert [name for name in registry.KINDS if registry.section(name).shows_lost] == ["delta"]


def keys(db_type: str) -> set[str]:
    return {info.alias or name for name, info in registry.section(db_type).model_fields.items()}


def test_unknown_db_type_is_refused_with_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'oracle'.*mysql"):
        registry.kind("oracle")


def test_writer_modules_of_every_kind_can_be_imported() -> None:
    for kind in registry.KINDS.values():
        for name in kind.writer:
            import_module(name)


def test_missing_client_library_is_named_when_its_sink_is_made() -> None:
    """And stands in nobody else's way."""
    code = (
        "import sys; sys.modules['confluent_kafka'] = None; from drainer.sink import registry\n"
        "from drainer.sink.settings import SyncerSettings; registry.import_writers()\n"
        "assert 'drainer.sink.mysql.rows.slot_writer' in sys.modules\n"
        "to = registry.section('kafka').model_validate({'addresses': ['k:1'], 'topic': 't'}); to.check()\n"
        "try: registry.sink('kafka', to, SyncerSettings())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.startswith(
        "ExtraMissing db-type 'kafka' needs the Python module confluent_kafka: pip install '.[spark,kafka]'"
    )


def test_registry_section_imports_no_destination_driver() -> None:
    """Who reads a configuration for one destination does not load the others' drivers."""
    code = (
        "import sys; from drainer.sink import registry; registry.section('sqlite'); "
        "print([n for n in sys.modules if n.startswith(('pymysql', 'drainer.sink.mysql'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "[]"


def test_key_of_another_db_type_is_refused_with_both_names() -> None:
    with pytest.raises(ValidationError) as refused:
        taken("mysql", {"host": "h", "path": "x"})
    (error,) = refused.value.errors()
    assert error["loc"] == ("path",)
    assert "db-type mysql has no path" in error["msg"]
    assert "sqlite" in error["msg"]


def test_unknown_section_key_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        taken("sqlite", {"path": "x", "no-such": 1})
    assert [error["type"] for error in refused.value.errors()] == ["extra_forbidden"]


def test_section_class_matches_its_db_type() -> None:
    assert [names for names in sections() if "mysql" in names] == ["mysql, tidb, mariadb"]
    for db_type in registry.KINDS:
        found = taken(db_type, {})
        assert type(found) is registry.section(db_type)
        assert isinstance(found, ToSection)


@pytest.mark.parametrize("db_type", registry.KINDS)
def test_only_sqlite_and_a_lake_make_ddl_from_its_job_alone(db_type: str, tmp_path: Path) -> None:
    path = {key: str(tmp_path / "x") for key in ("path", "dir") if key in keys(db_type)}
    to = registry.section(db_type).model_validate({**MINIMAL.get(db_type, {}), **path})
    assert isinstance(registry.sink(db_type, to, SyncerSettings()), DerivesDdl) is (db_type in ("sqlite", "delta"))
