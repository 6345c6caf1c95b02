"""Options of protocols under TiCDC's names, and what is refused with what words."""

from __future__ import annotations

from dataclasses import fields

import pytest
from binlog.errors import ConfigError

from drainer.protocol.options import ProtocolOptions
from tests.support.protocol_options import protocol_options


def test_protocol_options_without_settings_are_ticdcs_defaults() -> None:
    assert protocol_options({}) == ProtocolOptions("open-protocol")


def test_every_protocol_option_can_be_set_by_its_name() -> None:
    """Each field, set through its name, has the value; a field that is added without a name fails here."""
    texts = {
        "protocol": "SIMPLE",
        "max-message-bytes": "100",
        "max-batch-size": "3",
        "time-zone": "Asia/Tokyo",
        "namespace": "n",
        "enable-tidb-extension": "T",
        "only-output-updated-columns": "1",
        "delete-only-output-handle-key-columns": "true",
        "output-raw-change-event": "true",
        "output-old-value": "false",
        "open-varchar-base64": "true",
        "content-compatible": "true",
        "avro-decimal-handling-mode": "string",
        "avro-bigint-unsigned-handling-mode": "string",
        "avro-enable-watermark": "true",
        "avro-output-old-row": "true",
        "avro-delete-without-key": "leave-out",
        "avro-subject-names": "topic",
        "avro-defaults": "avro",
        "schema-registry": "http://u:secret@registry",
        "debezium-disable-schema": "true",
        "debezium-bigint-unsigned-handling-mode": "precise",
        "encoding-format": "avro",
        "send-bootstrap-interval-in-sec": "1",
        "send-bootstrap-in-msg-count": "2",
        "send-bootstrap-to-all-partition": "false",
        "large-message-handle-option": "claim-check",
        "large-message-handle-compression": "lz4",
        "claim-check-storage-uri": "s3://key:secret@bucket",
        "claim-check-raw-value": "true",
    }
    found, default = protocol_options(texts), ProtocolOptions("open-protocol")
    same = [f.name for f in fields(ProtocolOptions) if getattr(found, f.name) == getattr(default, f.name)]
    assert same == ["enable_row_checksum"]  # binlogs have none: only a program that reads may set it
    assert (found.protocol, found.send_bootstrap_interval_in_sec) == ("simple", 1)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ({"protocol": "maxwells"}, "protocol 'maxwells' is not known: there are open-protocol"),
        ({"protocol": "maxwell"}, "protocol 'maxwell' of TiCDC is not supported: take debezium or canal-json"),
        ({"max-message-bytes": "0"}, "max-message-bytes: a size was expected, from 1 byte"),
        ({"send-bootstrap-in-msg-count": "-1"}, "send-bootstrap-in-msg-count: a whole number was expected, from 0 to"),
        ({"max-batch-size": "1e3"}, "max-batch-size: a whole number was expected, from 1"),
        ({"enable-tidb-extension": "yes"}, "enable-tidb-extension: true or false was expected, not 'yes'"),
        ({"time-zone": "Mars"}, "time-zone 'Mars' is not in the IANA database"),
        (
            {"large-message-handle-compression": "gzip"},
            "large-message-handle-compression: Input should be 'none', 'snappy' or 'lz4'",
        ),
        ({"avro-decimal-handling-mode": "x"}, "avro-decimal-handling-mode: Input should be 'precise' or 'string'"),
        ({"avro-bigint-unsigned-handling-mode": "x"}, "avro-bigint-unsigned-handling-mode: Input should be"),
        ({"avro-defaults": "x"}, "avro-defaults: Input should be 'ticdc' or 'avro'"),
        ({"avro-subject-names": "x"}, "avro-subject-names: Input should be 'ticdc', 'topic', 'record' or"),
        ({"encoding-format": "xml"}, "encoding-format: Input should be 'json' or 'avro'"),
        ({"large-message-handle-option": "claim-check"}, 'which needs "claim-check-storage-uri"'),
        (
            {
                "large-message-handle-option": "claim-check",
                "claim-check-storage-uri": "x",
                "claim-check-raw-value": "1",
            },
            "claim-check-raw-value is not supported for the protocol open-protocol",
        ),
        (
            {"protocol": "avro", "schema-registry": "x", "large-message-handle-option": "handle-key-only"},
            "but the protocol avro has no such messages",
        ),
        (
            {"protocol": "canal-json", "large-message-handle-option": "handle-key-only"},
            'but "enable-tidb-extension" is not "true"',
        ),
        (
            {"protocol": "avro", "schema-registry": "x", "avro-enable-watermark": "true"},
            'avro-enable-watermark needs "enable-tidb-extension"',
        ),
    ],
)
def test_refused_option_is_named_with_its_allowed_values(uri: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        protocol_options(uri)
    assert error in str(caught.value)


def test_handle_key_only_is_allowed_for_protocols_of_ticdc() -> None:
    for uri in ({}, {"protocol": "simple"}, {"protocol": "canal-json", "enable-tidb-extension": "true"}):
        given = {"large-message-handle-option": "handle-key-only", **uri}
        assert protocol_options(given).large_message_handle_option == "handle-key-only"
