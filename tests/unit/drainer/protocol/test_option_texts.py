"""Options of protocols under TiCDC's names, and what is refused with what words."""

from __future__ import annotations

from dataclasses import fields

import pytest
from binlog.errors import ConfigError

from drainer.protocol.registry import ProtocolOptions, option_table
from tests.support.protocol_options import protocol_options


def test_protocol_options_without_settings_are_ticdcs_defaults() -> None:
    assert protocol_options({}) == ProtocolOptions("open-protocol")


def test_reader_sets_options_that_only_decoders_have_and_repr_hides_passwords() -> None:
    """All others are settings of the drainer: tests/unit/drainer/sink/kafka/test_section.py."""
    assert {one.name for one in fields(ProtocolOptions)} - option_table().keys() == {"protocol"}
    texts = {
        "protocol": "SIMPLE",
        "namespace": "n",
        "open-varchar-base64": "true",
        "schema-registry": "http://u:secret@registry",
        "claim-check-storage-uri": "s3://key:secret@bucket",
    }
    found = protocol_options(texts)
    assert (found.protocol, found.namespace, found.open_varchar_base64) == ("simple", "n", True)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        (
            {"large-message-handle-compression": "gzip"},
            "large-message-handle-compression: Input should be 'none', 'snappy' or 'lz4'",
        ),
        ({"avro-decimal-handling-mode": "x"}, "avro-decimal-handling-mode: Input should be 'precise' or 'string'"),
        ({"avro-bigint-unsigned-handling-mode": "x"}, "avro-bigint-unsigned-handling-mode: Input should be"),
        ({"avro-defaults": "x"}, "avro-defaults: Input should be 'ticdc' or 'avro'"),
        ({"avro-subject-names": "x"}, "avro-subject-names: Input should be 'ticdc' or 'topic'"),
        ({"encoding-format": "xml"}, "encoding-format: Input should be 'json' or 'avro'"),
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
