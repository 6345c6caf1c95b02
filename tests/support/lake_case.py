"""A Spark session with Delta, and recordings in a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from drainer.sink.lake.section import LakeSection
from drainer.sink.lake.sink import LakeSink
from scripts.maven_files import entries, folder_of
from tests.golden.compare import split_name
from tests.support.capture import CaptureSet
from tests.support.servers import ROOT, missing

JARS = ROOT / "scripts" / "jars" / "delta-4.4.0.txt"


@contextlib.contextmanager
def delta_session(folder: Path, **conf: str) -> Iterator[Any]:
    """A session with two cores and Delta."""
    from drainer.spark.startup.jvm_launch import start_jvm
    from drainer.spark.startup.session import open_session, stop_session

    settings = dict(LakeSection.model_validate({"dir": "x"}).spark_settings())
    del settings["spark.jars.packages"]
    settings |= {"spark.jars": jars(), "spark.sql.shuffle.partitions": "2"}
    session = open_session(start_jvm(master="local[2]", output=folder / "spark.log", conf=settings | conf))
    yield session
    stop_session(session)


def jars() -> str:
    """Delta's jars, as Spark's setting spark.jars."""
    found = sorted(folder_of(JARS).glob("*.jar"))
    if len(found) != len(entries(JARS)):
        missing("Delta is not there: scripts/need.sh delta")
    return ",".join(map(str, found))


def lake(directory: Path, session: Any, **settings: Any) -> LakeSink:
    """A lake that merges when it is told to."""
    sink = LakeSink(LakeSection(dir=str(directory), merge_interval=timedelta(hours=1), **settings))
    sink.session = lambda: session
    return sink


def differences(session: Any, directory: Path, capture: CaptureSet) -> list[str]:
    """A line for each mirror that is missing, or has other rows than upstream's table."""
    found = []
    for name, expected in capture.tables("expected").items():
        if expected.get("kind"):
            continue
        schema, table = split_name(name, expected)
        ours = mirror_rows(session, directory, schema, table)
        if ours is None:
            found.append(f"{name} is missing")
            continue
        shown = [name for name in expected["columns"] if not ours or name in ours[0]]
        places = [expected["columns"].index(one) for one in shown]
        wanted = sorted(str([text(row[place]) for place in places]) for row in expected["rows"])
        have = sorted(str([text(row[one]) for one in shown]) for row in ours)
        if have != wanted:
            lacks, more = [row for row in wanted if row not in have], [row for row in have if row not in wanted]
            found.append(f"{name}: {len(have)} rows, wanted {len(wanted)}; missing {lacks[:3]}; extra {more[:3]}")
    return found


def mirror_rows(session: Any, directory: Path, schema: str, table: str) -> list[dict[str, Any]] | None:
    from drainer.sink.file.parquet import path_of

    path = directory / path_of(schema) / path_of(table)
    if not (path / "_delta_log").is_dir():
        return None
    return [row.asDict() for row in session.read.format("delta").load(str(path)).collect()]


def text(value: Any) -> Any:
    """A value as a recording has it, as far as a lake has it."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    return value if value is None or isinstance(value, dict) else str(value)
