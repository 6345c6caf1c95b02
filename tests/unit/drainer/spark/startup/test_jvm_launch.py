"""How a JVM that does not come up is reported and ended; scripts stand for spark-submit."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkConf

from drainer.apply.progress import Stopped
from drainer.spark.startup.java import SparkUnavailable
from drainer.spark.startup.jvm_launch import connect, properties, start
from tests.support.servers import free_port, wait_until


def spark_home(tmp_path: Path, script: str) -> Mapping[str, str]:
    submit = tmp_path / "home" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    submit.chmod(0o755)
    return {"SPARK_HOME": str(tmp_path / "home")}


def started(tmp_path: Path) -> bool:
    """Whether the script runs. The shell creates the file of its pid a moment before it writes to it."""
    pid = (tmp_path / "pid").read_text().strip()
    return bool(pid) and Path(f"/proc/{pid}").exists()


def test_jvm_that_exits_early_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    """Also with exit code 0, for which pyspark waits for ever."""
    for number, code in enumerate((3, 0)):
        place = tmp_path / str(number)
        place.mkdir()
        jvm = start({}, spark_home(place, f"exit {code}"), place / "log")
        with pytest.raises(SparkUnavailable, match=f"exit code {code}"):
            connect(jvm, SparkConf(loadDefaults=False))
        assert not jvm.folder.exists()


def test_jvm_with_silent_gateway_is_reported_and_ended(tmp_path: Path) -> None:
    (tmp_path / "told").write_bytes(struct.pack(">ii", free_port(), 6) + b"secret")
    script = f'cp {tmp_path}/told "$TOLD.new"; mv "$TOLD.new" "$TOLD"; exec sleep 600'
    home = spark_home(tmp_path, script.replace("$TOLD", "$_PYSPARK_DRIVER_CONN_INFO_PATH"))
    before = dict(os.environ)
    jvm = start({}, home, tmp_path / "log")
    with pytest.raises(SparkUnavailable, match="gateway does not answer"):
        connect(jvm, SparkConf(loadDefaults=False))
    wait_until(lambda: not started(tmp_path), what="what was started ended")
    assert dict(os.environ) == before


def test_jvm_start_that_is_stopped_ends_its_process(tmp_path: Path) -> None:
    jvm = start({}, spark_home(tmp_path, "exec sleep 600"), tmp_path / "log")
    with pytest.raises(Stopped):
        connect(jvm, SparkConf(loadDefaults=False), stopping=lambda: (tmp_path / "pid").exists() and started(tmp_path))
    wait_until(lambda: not started(tmp_path), what="what was started ended")


def test_jvm_command_line_hides_settings_in_properties_file(tmp_path: Path) -> None:
    script = f'printf "%s\\n" "$@" "$EXTRA" > {tmp_path}/given; cat "$2" > {tmp_path}/settings; exit 1'
    settings = {"spark.a": "x y", "spark.authenticate.secret": "s3cret"}
    jvm = start(settings, {**spark_home(tmp_path, script), "EXTRA": "e"}, tmp_path / "log")
    with pytest.raises(SparkUnavailable):
        connect(jvm, SparkConf(loadDefaults=False))
    first, _file, *rest = (tmp_path / "given").read_text().splitlines()
    assert (first, rest) == ("--properties-file", ["--load-spark-defaults", "pyspark-shell", "e"])
    assert "s3cret" not in (tmp_path / "given").read_text()
    assert sorted((tmp_path / "settings").read_text().splitlines()) == [
        "spark.a=x\\ y",
        "spark.authenticate.secret=s3cret",
    ]


@given(st.dictionaries(st.text("abz.:=#! \\é", min_size=1), st.text("ab:=#! \\\n\r\t\fé€"), max_size=4))
def test_spark_properties_read_back_equal(wanted: dict[str, str]) -> None:
    found = dict(map(_property, properties(wanted).splitlines()))
    assert found == wanted


def _property(line: str) -> tuple[str, str]:
    """As java.util.Properties reads a line: the name ends at the first of `=`, `:` and white space that no backslash
    precedes; behind it white space is skipped."""
    found = re.fullmatch(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*((?:\\.|[^\\])*)", line)
    assert found is not None and line[:1] not in ("#", "!"), line
    named = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
    name, value = (re.sub(r"\\(.)", lambda one: named.get(one[1], one[1]), part) for part in found.groups())
    return name, value
