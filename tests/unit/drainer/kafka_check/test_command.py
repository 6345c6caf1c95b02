"""`kafka-check` on records in files: exit codes, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from socket import socket
from threading import Event as Stop
from types import SimpleNamespace

import pytest
from binlog.runtime.config import load
from binlog.tidb.types import FieldType, Tp
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from drainer import extras
from drainer.batch.work import Kind
from drainer.kafka_check.__main__ import PROGRAM, main
from drainer.kafka_consumer.__main__ import consume, print_events
from drainer.kafka_consumer.__main__ import main as consumer_main
from drainer.kafka_consumer.consumer import Consumer, Progress
from drainer.kafka_consumer.core import ConsumerCore, Resume
from drainer.kafka_reading.address import kafka_address
from drainer.kafka_reading.records import (
    KafkaPartition,
    ReadError,
    ReadStopped,
    Record,
    TopicReader,
    partitions_in,
    records_in,
)
from drainer.protocol.encoder import Ddl, Message
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.kafka_consumer.test_sqlite import consumer

URI = "kafka://unused/topic?protocol=open-protocol"
INT = FieldType(Tp.LONG, flen=11, decimal=0)
TABLE = make_table("db", "t", [("id", INT), ("v", INT)], primary=["id"])
ENCODER = make_encoder(ProtocolOptions("open-protocol"))


def rows(*changes: tuple[int, int]) -> list[Message]:
    """Inserts of (id, commit_ts)."""
    made = [make_changes(TABLE, Kind.INSERT, new=[[key, 0]], commit_ts=commit_ts) for key, commit_ts in changes]
    return [message for one in made for message in framed_rows(ENCODER, encoded_rows(ENCODER.table(TABLE), one))]


def dump(directory: Path, partition: int, messages: Iterable[Message]) -> None:
    with (directory / f"topic-{partition}.jsonl").open("w") as file:
        for offset, message in enumerate(messages):
            key, value = (None if of is None else b64encode(of).decode() for of in (message.key, message.value))
            file.write(json.dumps({"offset": offset, "key": key, "value": value}) + "\n")


def good(directory: Path) -> None:
    ddl = ENCODER.ddl(Ddl(15, 14, "db", "t", "ALTER TABLE t ADD w INT", 5))
    dump(directory, 0, [*rows((1, 10), (3, 12)), *ddl, *rows((1, 16)), *ENCODER.resolved(20)])
    dump(directory, 1, [*rows((2, 11)), *ddl, *ENCODER.resolved(20)])


def test_records_are_read_from_files_and_invalid_lines_refused(tmp_path: Path) -> None:
    dump(tmp_path, 1, [Message(b"k", None, 1, 1), Message(None, b"v", 1, 1)])
    (tmp_path / "notes.txt").write_text("")
    assert list(partitions_in(tmp_path)) == [KafkaPartition("topic", 1)]
    assert list(records_in(tmp_path)) == [
        Record(KafkaPartition("topic", 1), 0, b"k", None),
        Record(KafkaPartition("topic", 1), 1, None, b"v"),
    ]
    (tmp_path / "topic-0.jsonl").write_text('{"offset": 0, "key": null}\n')
    with pytest.raises(ReadError, match=r"topic-0\.jsonl: line 1 is not a record"):
        list(records_in(tmp_path))


def test_unreachable_brokers_are_reported_once_with_reason(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is said, and said once."""
    monkeypatch.setattr("drainer.kafka_reading.records._METADATA_S", 5)
    with socket() as reserved:  # nobody listens there, and nobody else can
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert main([f"kafka://{address}/topic?protocol=open-protocol"]) == 2
    err = capfd.readouterr().err
    assert f"kafka-check: the brokers at {address} do not answer: {address}/bootstrap: " in err
    assert "failed: Connection refused" in err
    assert len(err.splitlines()) <= 3


class Forgetful:
    """A client library that leaves each first question with a broker that is gone."""

    def __init__(self) -> None:
        self.waits: dict[str, list[float]] = {}

    def _asked(self, what: str, timeout: float) -> None:
        waits = self.waits.setdefault(what, [])
        waits.append(timeout)
        if len(waits) == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def list_topics(self, *, timeout: float) -> SimpleNamespace:
        self._asked("topics", timeout)
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def get_watermark_offsets(self, topic_partition: TopicPartition, *, timeout: float) -> tuple[int, int]:
        self._asked(f"end of {topic_partition.partition}", timeout)
        return 3, 3 + topic_partition.partition

    def poll(self, timeout: float) -> None: ...

    def close(self) -> None: ...


def test_metadata_request_without_answer_is_repeated_within_short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Forgetful()
    monkeypatch.setattr("binlog.topic.kafka.Consumer", lambda *_, **__: client)
    reader = TopicReader({}, ["t"])
    assert reader.partitions == {"t": 2}
    assert reader.count() == 1
    assert {what: len(waits) for what, waits in client.waits.items()} == {"topics": 2, "end of 0": 2, "end of 1": 2}
    assert max(wait for waits in client.waits.values() for wait in waits) <= 5


def refused(*_: object, **__: object) -> SimpleNamespace:
    """A client that gets no answer."""

    def list_topics(*, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    return SimpleNamespace(list_topics=list_topics, poll=lambda _: None, close=lambda: None)


def test_topic_reader_stopped_before_brokers_answer_raises_read_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlog.topic.kafka.Consumer", refused)
    with pytest.raises(ReadStopped, match="stopped before the brokers at b:1 had answered"):
        TopicReader({"bootstrap.servers": "b:1"}, ["t"], is_stopped=lambda: True)


def test_consumer_stopped_before_brokers_answer_ends_without_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("binlog.topic.kafka.Consumer", refused)
    stop = Stop()
    stop.set()
    address = kafka_address(URI, "test", {})
    consume(Consumer(address, stop=stop), consumer(tmp_path / "rows.db"))
    print_events(address, ["t"], lambda _: pytest.fail("nothing was read"), stop)


def test_silent_brokers_are_reported_with_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a port that wants TLS, or one of something else."""
    monkeypatch.setattr("binlog.topic.kafka.Consumer", refused)
    monkeypatch.setattr("drainer.kafka_reading.records._METADATA_S", 0.0)
    with pytest.raises(ReadError, match=r"the brokers at b:1 do not answer: .*; is it a broker's port, and does that"):
        TopicReader({"bootstrap.servers": "b:1"}, ["t"])


def test_interrupt_ends_with_code_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good(tmp_path)

    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("drainer.kafka_check.__main__.records_in", interrupted)
    assert main([URI, "--directory", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "kafka-check: interrupted, nothing is proven\n"


@pytest.mark.parametrize(
    ("program", "argv", "reason"),
    [
        (main, [], "uri: it must be given"),
        (main, ["--nope", URI], "flag provided but not defined: -nope"),
        (main, [URI, "--orderd"], "flag provided but not defined: -orderd (did you mean -ordered?)"),
        (main, [URI, "--dir", "x"], "flag provided but not defined: -dir (did you mean -directory?)"),
        (main, [URI, "--config", "check.toml"], "flag provided but not defined: -config"),
        (main, [URI, URI], "an argument too many: without a flag's name kafka-check takes only URI"),
        (main, [URI, "--directory", "--ordered"], "flag needs an argument: -directory (-ordered is a flag"),
        (main, [URI, "--topic"], "flag needs an argument: -topic"),
        (main, [URI, "--live=maybe"], "flag -live: true or false was expected, not 'maybe'"),
        (main, [URI, "--moves", "sometimes"], "flag -moves: 'never', 'at-resolved' or 'always' was expected, not"),
        (main, [URI, "--client", "nothing"], "flag -client: expected a name, = and a value"),
        (main, [URI, "--key", "a.t=a", "--key", "t=a"], "flag -key: t: expected DB.TABLE"),
        (main, ["no-uri"], "kafka-check: "),
        (consumer_main, [], "uri: it must be given"),
        (consumer_main, [URI], "exactly one of -to and -print must be given"),
        (consumer_main, [URI, "--print", "--to", "sqlite:x"], "exactly one of -to and -print must be given"),
        (consumer_main, [URI, "--print", "--nope"], "flag provided but not defined: -nope"),
    ],
)
def test_invalid_command_line_exits_with_2_and_reason(
    program: Callable[[list[str]], int], argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(program(argv))
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_flags_before_and_after_address_are_read_with_one_or_two_dashes(dashes: str) -> None:
    given = [f"{dashes}topic", "a,b", URI, f"{dashes}topic=^c", f"{dashes}key", "db.t=id,v", f"{dashes}live"]
    arguments = load(PROGRAM, given)
    assert (arguments.uri, arguments.topic, arguments.live) == (URI, ("a,b", "^c"), True)
    assert arguments.key == ((("db", "t"), ("id", "v")),)


def test_environment_is_not_read_by_program_that_has_only_flags() -> None:
    assert not load(PROGRAM, [URI], environ={"_LIVE": "true", "KAFKA_CHECK_LIVE": "true"}).live


def test_missing_packages_exit_with_2_and_name_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    for command in (extras.kafka_check, extras.kafka_consumer, extras.arbiter, extras.reparo, extras.drainer):
        assert command() == 2
        assert "not installed here: pip install '.[" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["reparo", "kafka_check", "kafka_consumer", "arbiter"])
def test_reading_programs_import_no_module_outside_their_extra(program: str) -> None:
    """And no other module than those of their extra."""
    code = f"import sys, drainer.{program}.__main__; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    optional = {name for extra in (extras.SPARK, extras.KAFKA) for name in extra.modules} | {"pyspark", "py4j"}
    allowed = (extras.REPARO if program == "reparo" else extras.KAFKA).modules
    assert optional & set(done.stdout.split()) <= set(allowed)


@pytest.mark.parametrize("program", [main, consumer_main])
def test_help_text_lists_exit_codes(program: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        program(["--help"])
    assert "\nExit codes:\n  0  " in capsys.readouterr().out


def test_progress_is_logged_at_intervals() -> None:
    now = [0.0]
    core = ConsumerCore([KafkaPartition("t", 0)], Resume(), lambda *_: None)
    progress = Progress(lambda: now[0])
    with capture_logs() as logs:
        for messages, at_s in ((5, 1.0), (5, 11.0), (0, 30.0), (7, 31.0), (1, 32.0)):
            now[0] = at_s
            progress.add(messages, core)
    assert [(line["event"], line["messages"]) for line in logs] == [("applied so far", 10), ("applied so far", 17)]


def test_topic_without_violations_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good(tmp_path)
    assert main([URI, "--directory", str(tmp_path), "--ordered"]) == 0
    assert capsys.readouterr().out == (
        "messages 8: rows 4, DDLs 2, resolved 2, others 0; repeated 0; rows that tell no key 0\nevery rule holds\n"
    )


def test_violation_is_printed_with_partition_and_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good(tmp_path)
    dump(tmp_path, 1, [*rows((2, 11)), *ENCODER.resolved(20), *rows((4, 19), *[(5, 21)] * 30)])
    assert main([URI, "--directory", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert (
        "row-behind-resolved: topic[1] offset 2: insert of a row of `db`.`t` at commit_ts 19 follows the resolved "
        "event 20\n"
    ) in out
    assert "\nand 11 more\n" in out
    assert out.endswith("\nbroken: ddl-missing 1, row-behind-resolved 1, row-twice 29\n")


def test_violations_allowed_by_options_are_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(tmp_path, 0, [*rows((1, 10)), *rows((1, 10)), *ENCODER.resolved(20)])
    dump(tmp_path, 1, [*ENCODER.resolved(20), *rows((1, 21))])
    where = [URI, "--directory", str(tmp_path)]
    assert main(where) == 1
    assert main([*where, "--allow-repeats"]) == 1
    assert main([*where, "--allow-repeats", "--moves", "always"]) == 0
    assert "repeated 1;" in capsys.readouterr().out
    dump(tmp_path, 1, rows((2, 21)))
    assert main([*where, "--allow-repeats"]) == 1
    assert "resolved-missing: topic[1]: 1 resolved events" in capsys.readouterr().out


def test_message_of_another_protocol_is_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(tmp_path, 0, [Message(b"torn", b"torn", 1, 1)])
    assert main([URI, "--directory", str(tmp_path)]) == 1
    assert "message: topic[0] offset 0: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([URI, "--directory", "/nowhere"], "no files TOPIC-PARTITION.jsonl"),
        (["http://unused/topic"], "the scheme must be one of"),
        (["kafka://unused/topic?protocol=nosuch"], "nosuch"),
        ([URI, "--client", "group.id=x"], "group.id"),
        ([URI, "--client", "foo=bar"], 'the Kafka client refuses its settings: No such configuration property: "foo"'),
        ([URI, "--topic", "^["], "topic '^[' is no regular expression: "),
    ],
)
def test_unusable_arguments_exit_with_2_and_reason(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
