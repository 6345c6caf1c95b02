"""`kafka-check URI`: exit code 0 if every rule holds, 1 if one is broken, 2 if the topics could not be checked, which
includes bad settings and a bad command line.

kafka-check 'kafka://127.0.0.1:9092/shop?protocol=open-protocol' --ordered
kafka-check 'kafka://127.0.0.1:9092/shop?protocol=avro&schema-registry=…' --topic '^shop_' --moves at-resolved
kafka-check --directory DUMP 'kafka://unused/shop?protocol=canal-json'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from binlog.errors import BinlogError, ConfigError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drainer.kafka_check.checker import Checker, Moves, Promises, Report
from drainer.kafka_reading.address import kafka_address
from drainer.kafka_reading.decoding import MakeDecoder, decoders
from drainer.kafka_reading.records import KafkaPartition, Record, TopicReader, partitions_in, records_in
from drainer.protocol.encoder import DdlScope, Decoder
from drainer.protocol.errors import MessageError
from drainer.protocol.registry import make_encoder

_SHOWN_AT_MOST = 20
_INTERRUPTED = 130  # as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        report = _checked(arguments)
    except BinlogError as error:
        sys.stderr.write(f"kafka-check: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("kafka-check: interrupted, nothing is proven\n")
        return _INTERRUPTED
    sys.stdout.write(shown(report))
    return 0 if report.is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kafka-check",
        description="Reads topics from their beginning to their end and proves the rules that consumers rely on.",
        epilog="Exit code 0 if every rule holds, 1 if one is broken, 2 if the topics could not be checked, which "
        "includes bad settings and a bad command line.",
    )
    parser.add_argument("uri", help="TiCDC's address of a topic: kafka://host:9092/topic?protocol=open-protocol")
    parser.add_argument(
        "--topic", action="append", help="a topic to read, or a regular expression that begins with ^; more than once; "
        "without it, that of the address",
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, help="read TOPIC-PARTITION.jsonl files, and ask no broker")
    parser.add_argument(
        "--ordered", action="store_true", help="each partition is in commit order over all its rows, not of each alone"
    )
    parser.add_argument(
        "--moves", choices=[one.value for one in Moves], default=Moves.NEVER.value,
        help="when a row may go to another partition: at-resolved for partition = conflict, always for ts",
    )  # fmt: skip
    parser.add_argument(
        "--allow-repeats", action="store_true", help="the producer writes at least once: repetitions are counted, and "
        "they must be in their partition and below no resolved event",
    )  # fmt: skip
    parser.add_argument("--live", action="store_true", help="topics are being written; what is newest may be missing")
    parser.add_argument("--topics-end", action="store_true", help="topics of dropped tables get no resolved events")
    parser.add_argument("--read-uncommitted", action="store_true", help="read what transactions did not commit, too")
    parser.add_argument(
        "--key", action="append", default=[], metavar="DB.TABLE=COLUMN,…",
        help="the key's columns of a table whose messages do not tell them",
    )  # fmt: skip
    parser.add_argument(
        "--client", action="append", default=[], metavar="NAME=VALUE", help="a setting of the client library"
    )
    return parser


def _checked(arguments: argparse.Namespace) -> Report:
    client = dict(_pair(one, "--client") for one in arguments.client)
    address = kafka_address(arguments.uri, "kafka-check", client)
    promises = Promises(
        ordered=arguments.ordered,
        moves=Moves(arguments.moves),
        repeats=arguments.allow_repeats,
        ddl_everywhere=make_encoder(address.options).ddl_scope is not DdlScope.FIRST_PARTITION,
        topics_end=arguments.topics_end,
        whole=not arguments.live,
    )
    keys = {_table(name): tuple(columns.split(",")) for name, columns in (_pair(one, "--key") for one in arguments.key)}
    if arguments.directory is not None:
        partitions: dict[str, int] = {}
        for topic_partition in partitions_in(arguments.directory):
            partitions[topic_partition.topic] = max(
                partitions.get(topic_partition.topic, 0), topic_partition.partition + 1
            )
        return check(records_in(arguments.directory), Checker(partitions, promises, keys), decoders(address.options))
    with ExitStack() as stack:
        reader = TopicReader(
            address.client, arguments.topic or [address.topic], committed=not arguments.read_uncommitted
        )
        stack.callback(reader.close)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()))
        records = bar.track(reader.records(), total=reader.count(), description="records")
        return check(records, Checker(reader.partitions, promises, keys), decoders(address.options))


def check(records: Iterable[Record], checker: Checker, make: MakeDecoder) -> Report:
    """Each partition has a decoder of its own."""
    made: dict[KafkaPartition, Decoder] = {}
    for record in records:
        decoder = made.get(record.topic_partition)
        if decoder is None:
            decoder = made[record.topic_partition] = make()
        try:
            events = decoder.decode(record.key, record.value)
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


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError(f"{option} {text}: expected a name, = and a value")
    return name, value


def _table(name: str) -> tuple[str, str]:
    schema, point, table = name.partition(".")
    if not point:
        raise ConfigError(f"--key {name}: expected DB.TABLE")
    return schema, table


if __name__ == "__main__":
    sys.exit(main())
