"""The messages that README shows, one for each protocol, are what the encoders write."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import fastavro
import pytest
from binlog.pb import secondary_binlog_pb2
from google.protobuf.json_format import MessageToDict

from drainer.batch.work import Kind
from drainer.protocol.encoder import Encoder, Message, merged
from drainer.protocol.registry import PROTOCOLS, make_encoder
from drainer.sink.kafka.settings.section import KafkaSection
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.protocol_options import protocol_options
from tests.support.row_changes import make_changes
from tests.unit.drainer.protocol.test_documented_messages import COMMIT, TABLE

SECTION = (Path(__file__).parents[4] / "README.md").read_text().split("\n## To Kafka\n")[1].split("\n## ")[0]
# What stands beside `protocol` in the sentence before the message; a registry's address is no choice of the reader's.
PARAMETERS = {
    "open-protocol": {},
    "avro": {"schema-registry": "http://127.0.0.1", "enable-tidb-extension": "true"},
    "canal-json": {"enable-tidb-extension": "true"},
    "debezium": {"debezium-disable-schema": "true"},
    "simple": {},
    "secondary-binlog": {},
}
TOPIC = "shop_staff"


def update(protocol: str) -> tuple[Message, Encoder]:
    encoder = make_encoder(protocol_options({"protocol": protocol, **PARAMETERS[protocol]}))
    required = encoder.required_schemas(TOPIC, TABLE)
    encoder = encoder.with_ids(merged({}, [(one, number) for number, one in enumerate(required, 1)]))
    changes = make_changes(TABLE, Kind.UPDATE, old=[(7, b"Ann", 3)], new=[(7, b"Ann", 200)], commit_ts=COMMIT)
    (message,) = framed_rows(encoder, encoded_rows(encoder.table(TABLE, TOPIC), changes))
    return message, encoder


def documents(protocol: str) -> list[Any]:
    """Key and value of the message, where it has them, as a reader who is not ours takes them apart."""
    message, encoder = update(protocol)
    parts = [part for part in (message.key, message.value) if part is not None]
    match protocol:
        case "open-protocol":
            key, value = parts
            assert key[:8] == (1).to_bytes(8, "big")
            return [
                json.loads(text) for text, size in ((key[16:], key[8:16]), (value[8:], value[:8]))
                if len(text) == int.from_bytes(size, "big")
            ]  # fmt: skip
        case "avro":
            schemas = [json.loads(one.schema) for one in encoder.required_schemas(TOPIC, TABLE)]
            return [
                fastavro.schemaless_reader(io.BytesIO(part[5:]), schema, None)
                for part, schema in zip(parts, schemas, strict=True)
            ]
        case "secondary-binlog":
            return [MessageToDict(secondary_binlog_pb2.Binlog.FromString(part)) for part in parts]
    return [json.loads(part) for part in parts]


@pytest.mark.parametrize("protocol", PARAMETERS)
def test_messages_in_readme_equal_encoders(protocol: str) -> None:
    part = SECTION.split(f"<!-- {protocol} -->\n")[1].split("\n<!-- ")[0]
    about = part[: part.index("```")]
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", part, re.DOTALL)]
    assert shown == documents(protocol)
    assert about.startswith(f"`{protocol}`")
    told = dict(re.findall(r"`([a-z-]+)=(\w+)`", about))
    assert told == {name: value for name, value in PARAMETERS[protocol].items() if name != "schema-registry"}


def test_readme_shows_messages_of_every_protocol() -> None:
    assert {PROTOCOLS[name] for name in PARAMETERS} == set(PROTOCOLS.values())


def test_configuration_in_readme_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    given = tomllib.loads(text)["syncer"]
    assert given["db-type"] == "kafka"
    section = KafkaSection.model_validate(given["to"], by_alias=True, by_name=False)
    section.check()
    assert section.router().topic("shop", "staff") == "shop_staff"
    assert (section.topic, section.protocol, section.partition_num) == ("shop", "open-protocol", 6)
