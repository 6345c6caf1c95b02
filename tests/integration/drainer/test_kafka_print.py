"""`kafka-consumer --print` on a real broker: what is committed, as lines of JSON, in the order of each partition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drainer.batch.work import Kind
from drainer.kafka_consumer.__main__ import main
from drainer.protocol.encoder import Ddl
from tests.integration.drainer.test_kafka_consumer import changed, write
from tests.support.kafka import Broker
from tests.unit.drainer.kafka_check.test_command import ENCODER, rows

pytestmark = pytest.mark.timeout(300)


def test_kafka_consumer_prints_every_event_as_one_line(kafka: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    topic = kafka.topic(2)
    truncate = ENCODER.ddl(Ddl(15, 14, "db", "t", "TRUNCATE TABLE t", 11))
    write(
        kafka,
        topic,
        [*rows((1, 10)), *changed(Kind.UPDATE, 1, 7, 11), *truncate, *ENCODER.resolved(15)],
        [*changed(Kind.DELETE, 2, 0, 12), *ENCODER.resolved(15)],
    )
    assert main([f"kafka://{kafka.address}/{topic}?protocol=open-protocol", "--print", "--once"]) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {event["topic"] for event in events} == {topic}
    of = [[event for event in events if event["partition"] == number] for number in range(2)]
    assert [event["event"] for event in of[0]] == ["insert", "update", "ddl", "resolved"]
    assert [event["event"] for event in of[1]] == ["delete", "resolved"]
    assert [event["commit_ts"] for event in of[0]] == [10, 11, 15, 15]
    assert [event["offset"] for event in of[0]] == [0, 1, 2, 3]
    assert of[0][2]["query"] == "TRUNCATE TABLE t"


def test_kafka_consumer_print_ends_when_its_reader_closes_pipe(kafka: Broker) -> None:
    """As `| head -1`, more than a pipe holds."""
    topic = kafka.topic(1)
    write(kafka, topic, [message for number in range(3000) for message in rows((number, 10 + number))])
    uri = f"kafka://{kafka.address}/{topic}?protocol=open-protocol"
    command = [sys.executable, "-m", "drainer.kafka_consumer", uri, "--print"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert json.loads(reader.stdout.readline())["offset"] == 0
        reader.stdout.close()
        assert reader.wait(120) == 0
        assert b"Traceback" not in reader.stderr.read()


def test_kafka_consumer_needs_exactly_one_of_print_and_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = "kafka://127.0.0.1:9/t?protocol=open-protocol"
    for wrong in ([uri], [uri, "--print", "--to", f"sqlite:{tmp_path / 'x.db'}"]):
        with pytest.raises(SystemExit) as refused:
            main(wrong)
        assert refused.value.code == 2
    assert "exactly one of -to and -print must be given" in capsys.readouterr().err
