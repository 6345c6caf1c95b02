"""The two changefeeds of the demo: the destination of each, and the programs that write it and read it back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from demo.processes import DrainerProgram, Program, drainer_program


@dataclass(frozen=True, slots=True)
class Feed:
    """A changefeed. `uri`: TiCDC's sink URI, for drainer and readers. `dispatchers`: the drainer's rules in TOML.
    `topics`: the topics that readers read, names or regular expressions that begin with ^."""

    name: str
    title: str
    uri: str
    dispatchers: str
    topics: Sequence[str]

    def drainer(self, directory: Path, etcd_url: str) -> DrainerProgram:
        syncer = f'[syncer]\ndb-type = "kafka"\n\n[syncer.to]\nsink-uri = "{self.uri}"\n\n{self.dispatchers}'
        return drainer_program(directory, etcd_url, self.name, syncer, changefeed=self.name)

    def printer(self, directory: Path) -> Program:
        """The program that appends every event as a line of JSON to its `output`, as events arrive."""
        name = f"{self.name}-events"
        argv = self._reader("drainer.kafka_consumer", "--print")
        return Program(name, argv, directory / f"{name}.log", directory / f"{name}.jsonl")

    def consumer(self, directory: Path) -> Program:
        """The program that applies all existing messages to `database`, and ends."""
        argv = self._reader("drainer.kafka_consumer", "--to", f"sqlite:{self.database(directory)}", "--once")
        return Program(f"{self.name}-consumer", argv, directory / f"{self.name}-consumer.log")

    def checker(self, directory: Path) -> Program:
        """The program that checks the rules of order. Its `output` is the result."""
        name = f"{self.name}-check"
        argv = self._reader("drainer.kafka_check", "--ordered")
        return Program(name, argv, directory / f"{name}.log", directory / f"{name}.txt")

    def database(self, directory: Path) -> Path:
        return directory / f"{self.name}.sqlite"

    def _reader(self, module: str, *arguments: str) -> list[str]:
        topics = [word for topic in self.topics for word in ("--topic", topic)]
        return [sys.executable, "-m", module, self.uri, *topics, *arguments]


def feeds(broker: str, registry_url: str) -> list[Feed]:
    """Return the changefeeds. `broker`: host:port. In both, a row's key determines the partition of its changes."""
    by_key = '[[syncer.to.dispatchers]]\nmatcher = ["shop.*"]\npartition = "index-value"\n'
    avro = (
        f"kafka://{broker}/shop-avro?protocol=avro&partition-num=2&schema-registry={quote(registry_url, safe='')}"
        # Otherwise a reader cannot know up to where a partition is complete, and deletes have no value: a delete in
        # `events`, which has no key, would then have neither key nor value.
        "&enable-tidb-extension=true&avro-enable-watermark=true&avro-output-old-row=true"
    )
    return [
        Feed(
            "open-protocol",
            "Open Protocol: one topic, rows spread by their key",
            f"kafka://{broker}/shop?protocol=open-protocol&partition-num=4",
            by_key,
            ["shop"],
        ),
        Feed(
            "avro",
            "Avro with a schema registry: a topic for each table",
            avro,
            by_key + 'topic = "{schema}_{table}"\n',
            ["shop-avro", "^shop_"],
        ),
    ]
