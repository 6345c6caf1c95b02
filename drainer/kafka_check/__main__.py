"""`kafka-check URI`: exit code 0 if every rule holds, 1 if one is broken, 2 if the topics could not be checked, which
includes bad settings and a bad command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

from binlog.errors import BinlogError
from binlog.runtime.command_line import INTERRUPTED, Program, flags_of
from binlog.runtime.config import load_or_exit
from pydantic import BeforeValidator, Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drainer.kafka_check.checker import Checker, Moves, Promises, Report
from drainer.kafka_reading.address import TopicsSection, kafka_address
from drainer.kafka_reading.records import PartitionDecoders, Record, TopicReader, partitions_in, records_in
from drainer.protocol.encoder import DdlScope
from drainer.protocol.errors import MessageError
from drainer.protocol.registry import make_encoder

_SHOWN_AT_MOST = 20


def _setting(text: object) -> tuple[str, str]:
    name, equals, value = str(text).partition("=")
    if not equals or not name or not value:
        raise ValueError("expected a name, = and a value")
    return name, value


def _key(text: object) -> tuple[tuple[str, str], tuple[str, ...]]:
    name, columns = _setting(text)
    schema, point, table = name.partition(".")
    if not point:
        raise ValueError(f"{name}: expected DB.TABLE")
    return (schema, table), tuple(columns.split(","))


class Arguments(TopicsSection):
    """The command line."""

    directory: Path | None = Field(None, description="read TOPIC-PARTITION.jsonl files, and ask no broker")
    ordered: bool = Field(False, description="each partition is in commit order over all its rows, not of each alone")
    moves: Moves = Field(
        Moves.NEVER,
        description="when a row may go to another partition: at-resolved for partition = conflict, always for ts",
    )
    allow_repeats: bool = Field(
        False,
        description="the producer writes at least once: repetitions are counted, and they must be in their partition "
        "and below no resolved event",
    )
    live: bool = Field(False, description="topics are being written; what is newest may be missing")
    topics_end: bool = Field(False, description="topics of dropped tables get no resolved events")
    read_uncommitted: bool = Field(False, description="read what transactions did not commit, too")
    key: tuple[Annotated[tuple[tuple[str, str], tuple[str, ...]], BeforeValidator(_key)], ...] = Field(
        (), description="DB.TABLE=COLUMN,…: the key's columns of a table whose messages do not tell them"
    )
    client: tuple[Annotated[tuple[str, str], BeforeValidator(_setting)], ...] = Field(
        (), description="NAME=VALUE: a setting of the client library"
    )


PROGRAM: Final = Program(
    "kafka-check",
    Arguments,
    flags_of(Arguments),
    words=("uri",),
    about="Reads topics from their beginning to their end and proves the rules that consumers rely on.",
    exit_codes={
        0: "every rule holds",
        1: "a rule is broken",
        2: "the topics could not be checked, which includes bad settings and a bad command line",
    },
    examples=(
        "kafka-check 'kafka://127.0.0.1:9092/shop?protocol=open-protocol' --ordered",
        "kafka-check 'kafka://127.0.0.1:9092/shop?protocol=avro&schema-registry=…' --topic '^shop_' "
        "--moves at-resolved",
        "kafka-check --directory DUMP 'kafka://unused/shop?protocol=canal-json'",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = load_or_exit(PROGRAM, argv)
    try:
        report = _checked(arguments)
    except BinlogError as error:
        sys.stderr.write(f"kafka-check: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("kafka-check: interrupted, nothing is proven\n")
        return INTERRUPTED
    sys.stdout.write(shown(report))
    return 1 if report.broken else 0


def _checked(arguments: Arguments) -> Report:
    address = kafka_address(arguments.uri, "kafka-check", dict(arguments.client))
    promises = Promises(
        ordered=arguments.ordered,
        moves=arguments.moves,
        repeats=arguments.allow_repeats,
        ddl_everywhere=make_encoder(address.options).ddl_scope is not DdlScope.FIRST_PARTITION,
        topics_end=arguments.topics_end,
        whole=not arguments.live,
    )
    keys = dict(arguments.key)
    decoders = PartitionDecoders(address.options)
    if arguments.directory is not None:
        partitions: dict[str, int] = {}
        for topic, number in partitions_in(arguments.directory):
            partitions[topic] = max(partitions.get(topic, 0), number + 1)
        return check(records_in(arguments.directory), Checker(partitions, promises, keys), decoders)
    with ExitStack() as stack:
        reader = TopicReader(
            address.client, arguments.topic or [address.topic], committed=not arguments.read_uncommitted
        )
        stack.callback(reader.close)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()))
        records = bar.track(reader.records(), total=reader.count(), description="records")
        return check(records, Checker(reader.partitions, promises, keys), decoders)


def check(records: Iterable[Record], checker: Checker, decoders: PartitionDecoders) -> Report:
    for record in records:
        try:
            events = decoders.of(record.topic_partition).decode(record.key, record.value)
        except MessageError as error:
            checker.add_unreadable(record.topic_partition, record.offset, str(error))
        else:
            checker.add(record.topic_partition, record.offset, events)
    return checker.finish()


def shown(report: Report) -> str:
    """For people, one thing in a line."""
    lines = [
        f"messages {report.messages:,}: rows {report.rows:,}, DDLs {report.ddls:,}, resolved {report.resolved:,}, "
        f"others {report.others:,}; repeated {report.repeats:,}; rows that tell no key {report.unidentified_rows:,}"
    ]
    lines += map(str, report.violations[:_SHOWN_AT_MOST])
    total = report.broken.total()
    if total > _SHOWN_AT_MOST:
        lines.append(f"and {total - _SHOWN_AT_MOST:,} more")
    broken = ", ".join(f"{rule} {count:,}" for rule, count in sorted(report.broken.items()))
    lines.append(f"broken: {broken}" if broken else "every rule holds")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
