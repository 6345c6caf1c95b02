"""Configurations and commands for Kafka and files, as the pages have them: programs take them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from binlog.runtime.command_line import Program
from binlog.runtime.config import load

from drainer.config import PROGRAM as DRAINER
from drainer.kafka_check.__main__ import PROGRAM as KAFKA_CHECK
from drainer.kafka_consumer.__main__ import PROGRAM as KAFKA_CONSUMER
from drainer.kafka_reading.address import kafka_address
from drainer.reparo.config import PROGRAM as REPARO
from tests.unit.docs.test_docs import ROOT

PAGES = ["README.md", *(f"docs/{name}.md" for name in ("kafka-operations", "dispatch", "files", "jsonl", "migration"))]
_BLOCK = re.compile(r"^( *)```(toml|sh)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    (?:[A-Z_]+=\S+ )?kafka-.*\n(?:^        .*\n)*)", re.MULTILINE)
_PROGRAMS: dict[str, Program[Any]] = {one.name: one for one in (KAFKA_CHECK, KAFKA_CONSUMER)}


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / page).read_text()
    return [re.sub(rf"^{of[1]}", "", of[3], flags=re.MULTILINE) for of in _BLOCK.finditer(text) if of[2] == kind]


def commands(page: str) -> list[list[str]]:
    """Of readers of Kafka: those in blocks and in indented lines, without what is behind a pipe or a #."""
    text = (ROOT / page).read_text()
    shown = [*_INDENTED.findall(text), *(line for block in blocks(page, "sh") for line in block.splitlines())]
    found = []
    for command in shown:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
        words = words[: words.index("|")] if "|" in words else words
        if words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words and words[0] in _PROGRAMS:
            found.append(words)
    return found


CONFIGURATIONS = [(page, number, text) for page in PAGES for number, text in enumerate(blocks(page, "toml"))]
COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "number", "text"), CONFIGURATIONS, ids=[f"{p}-{n}" for p, n, _ in CONFIGURATIONS])
def test_configuration_example_in_pages_is_valid(page: str, number: int, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    if "dest-type" in text:
        path.write_text(text.replace("/var/lib/changes", str(tmp_path)))
        argv = ["-config", str(path)]
        reparo_config = load(REPARO, argv, environ={})
        reparo_config.check()
        return
    path.write_text(text)
    config = load(DRAINER, ["-config", str(path)], environ={})
    config.check()


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page} {' '.join(words)[:60]}" for page, words in COMMANDS]
)
def test_kafka_command_example_in_pages_is_valid(page: str, words: list[str]) -> None:
    arguments = load(_PROGRAMS[words[0]], words[1:])
    address = kafka_address(arguments.uri, words[0], {})
    assert address.topic


def test_example_blocks_are_found_in_pages() -> None:
    assert len(CONFIGURATIONS) >= 7
    assert {words[0] for _, words in COMMANDS} == set(_PROGRAMS)
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/dispatch.md"}
