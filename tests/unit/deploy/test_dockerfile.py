"""deploy/docker/Dockerfile, read strictly: who runs, what is installed, what is copied; tests/integration plays it."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest

from tests.support.compose import images
from tests.support.dockerfile import DockerfileError, Stage, chain, health_command, stages
from tests.support.servers import ROOT

FILE = ROOT / "deploy/docker/Dockerfile"
TARGETS = ("pump", "drainer", "consumer", "tools", "shop")
# In stages that are run: users, folders, and Debian's own Java; nothing that compiles, nothing from elsewhere.
RUN_TIME = {"groupadd", "useradd", "install", "mkdir", "apt-get", "rm", "python"}
PACKAGES = {"openjdk-17-jre-headless"}


def made() -> dict[str, Stage]:
    return stages(FILE.read_text())


def commands(stage: Stage) -> list[list[str]]:
    """Of its RUNs, each command's words."""
    texts = [one.text for one in stage.instructions if one.word == "RUN"]
    return [shlex.split(part) for text in texts for part in re.split(r"&&|;", text)]


def test_dockerfile_run_commands_are_valid_shell() -> None:
    for stage in made().values():
        for one in stage.instructions:
            if one.word == "RUN":
                subprocess.run(["sh", "-n", "-c", one.text], check=True, timeout=240)


@pytest.mark.parametrize("target", TARGETS)
def test_runtime_images_install_only_expected_packages(target: str) -> None:
    for stage in chain(made(), target):
        for words in commands(stage):
            assert words[0] in RUN_TIME, words
            if words[:2] == ["apt-get", "install"]:
                assert {word for word in words[2:] if not word.startswith("-")} == PACKAGES
                assert "--no-install-recommends" in words
            if words[0] == "python":
                assert words[1:] == ["-m", "drainer.spark.startup.class_archive"]


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_user_without_root(target: str) -> None:
    users = [one.text for stage in chain(made(), target) for one in stage.instructions if one.word == "USER"]
    assert users[-1] == "10001:10001"
    made_users = [words for words in commands(made()["runtime"]) if words[0] == "useradd"]
    assert [words[words.index("--uid") + 1] for words in made_users] == ["10001"]


def test_class_archive_is_made_by_its_reading_user_after_copy() -> None:
    drainer = made()["drainer"]
    words = [one.word for one in drainer.instructions]
    archive = next(n for n, one in enumerate(drainer.instructions) if "class_archive" in one.text)
    before = drainer.instructions[:archive]
    assert [one.text for one in before if one.word == "USER"][-1] == "10001:10001"
    assert any("XDG_CACHE_HOME=/var/cache/tidb-binlog" in one.text for one in before if one.word == "ENV")
    assert "COPY" in words[:archive]


@pytest.mark.parametrize(("target", "port"), [("pump", 9250), ("drainer", 9249)])
def test_server_images_have_health_check_without_shell(target: str, port: int) -> None:
    stage = made()[target]
    check, exposed = stage.last("HEALTHCHECK"), stage.last("EXPOSE")
    assert check is not None and exposed is not None
    assert health_command(check) == ["python", "-m", "binlog.runtime.probe", f"http://127.0.0.1:{port}/ready"]
    assert str(port) in exposed.text.split()
    stop = stage.last("STOPSIGNAL")
    assert stop is not None and stop.text == "SIGTERM"


def test_images_install_locked_packages_from_wheels() -> None:
    """What has no wheel is built by what the lock constrains."""
    syncs = [
        words
        for name in ("build", "build-pump", "build-drainer")
        for words in commands(made()[name])
        if words[:2] == ["uv", "sync"]
    ]
    assert len(syncs) == 4 and all({"--frozen", "--no-dev"} <= set(words) for words in syncs)
    assert "--no-build" in syncs[0]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    without_wheel = {one["name"] for one in lock["package"] if not one.get("wheels")}
    assert without_wheel == {"pyspark", "tidb-binlog-spark"}
    pinned = {one["name"]: one["specifier"] for one in lock["manifest"]["build-constraints"]}
    versions = {one["name"]: one["version"] for one in lock["package"]}
    assert {"hatchling", "setuptools"} <= pinned.keys()
    assert pinned == {name: f"=={versions[name]}" for name in pinned}, "uv.lock has them, too"


def test_images_have_entrypoint_of_their_program() -> None:
    found = images(FILE)
    assert found["pump"].entrypoint == ["pump"] and found["drainer"].entrypoint == ["drainer"]
    assert found["consumer"].entrypoint == ["kafka-consumer"]
    assert found["tools"].command == ["binlogctl", "--help"]
    assert found["shop"].entrypoint == ["python", "-m", "demo.service"]


def test_dockerfile_copies_existing_files_not_ignored() -> None:
    kept = {line[1:] for line in FILE.with_suffix(".dockerignore").read_text().splitlines() if line[:1] == "!"}
    sources = {
        source
        for stage in made().values()
        for one in stage.instructions
        if one.word == "COPY" and "--from" not in one.text
        for source in one.text.split()[:-1]
    }
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("RUN true\n", "before the first FROM"),
        ("FROM a\n", "a name of its own"),
        ("FROM a AS b\nRUNN true\n", "'RUNN' is no instruction"),
        ("FROM a AS b\nRUN true \\\n\nRUN false\n", "an empty line"),
        ("FROM a AS b\nRUN true \\\n", "does not end"),
        ("FROM a AS b\nCMD pump\n", "CMD is not a JSON array"),
        ('FROM a AS b\nHEALTHCHECK --intervall=3s CMD ["x"]\n', "HEALTHCHECK"),
        ("FROM a AS b\nCOPY --from=c /x /y\n", "no stage c"),
        ("FROM a AS b\nEXPOSE web\n", "EXPOSE web"),
    ],
)
def test_dockerfile_faults_are_found_by_parser(text: str, fault: str) -> None:
    with pytest.raises(DockerfileError, match=fault):
        stages(text)
