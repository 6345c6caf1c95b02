"""What docs/kafka.md says of each protocol, where encoders and decoders can be asked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.job import ActionType

from drainer.batch.work import Kind
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.encoder import Ddl, DdlScope, Decoder, Encoder, merged
from drainer.protocol.errors import ProtocolConfigError
from drainer.protocol.event import Change, RowEvent
from drainer.protocol.registry import PROTOCOLS, make_decoder, make_encoder
from tests.support.encoded import encoded_rows, framed_rows, handle_only_rows
from tests.support.protocol_options import protocol_options
from tests.support.row_changes import make_changes
from tests.unit.drainer.protocol.test_documented_messages import COMMIT, TABLE

PAGE = (Path(__file__).parents[4] / "docs" / "kafka.md").read_text().split("\n## Which protocol\n")[1].split("\n## ")[0]
HEADER, _, *ROWS = (
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"
)
TABLE_OF_PAGE = {row[0].strip("`"): dict(zip(HEADER, row, strict=True)) for row in ROWS}
OF_FILES = {"output-old-value": "output_old_value"}  # settings that no sink URI has
FIRST, SECOND = (7, b"Ann", 3), (7, b"Ann", 200)


def both(protocol: str, given: dict[str, str]) -> tuple[Encoder, Decoder]:
    avro = {"schema-registry": "http://127.0.0.1"} if protocol == "avro" else {}
    texts = {name: value for name, value in given.items() if name not in OF_FILES}
    options = protocol_options({"protocol": protocol, **avro, **texts})
    options = replace(options, **{OF_FILES[name]: value == "true" for name, value in given.items() if name in OF_FILES})
    encoder = make_encoder(options)
    if encoder.registers:
        required = encoder.required_schemas("shop", TABLE)
        encoder = encoder.with_ids(merged({}, [(one, number) for number, one in enumerate(required, 1)]))
        schemas = {number: one.schema for number, one in enumerate(required, 1)}.__getitem__
        return encoder, AvroDecoder(options, schemas)
    return encoder, make_decoder(options)


def row(protocol: str, given: dict[str, str], kind: Kind) -> RowEvent | None:
    """What a reader makes of an insert or an update; None for nothing yet."""
    encoder, decoder = both(protocol, given)
    old = [FIRST] if kind is Kind.UPDATE else None
    changes = make_changes(TABLE, kind, old=old, new=[SECOND], commit_ts=COMMIT)
    for message in encoder.bootstrap(TABLE, COMMIT):
        decoder.decode(message.key, message.value)
    (message,) = framed_rows(encoder, encoded_rows(encoder.table(TABLE, "shop"), changes))
    (event,) = decoder.decode(message.key, message.value)
    assert isinstance(event, RowEvent)
    return event


def tells_inserts(protocol: str, given: dict[str, str]) -> bool:
    inserted, updated = (row(protocol, given, kind) for kind in (Kind.INSERT, Kind.UPDATE))
    assert inserted is not None and updated is not None
    return (inserted.change, updated.change) == (Change.INSERT, Change.UPDATE)


def has_old_values(protocol: str, given: dict[str, str]) -> bool:
    updated = row(protocol, given, Kind.UPDATE)
    assert updated is not None
    return updated.old is not None and updated.old["level"].value in (3, "3")


def ddl_scope(protocol: str, given: dict[str, str]) -> str:
    encoder, _ = both(protocol, given)
    ddl = Ddl(COMMIT, COMMIT - 1, "shop", "staff", "ALTER TABLE staff …", int(ActionType.ADD_COLUMN), None, TABLE)
    if not encoder.ddl(ddl):
        return "no"
    return {DdlScope.ALL_PARTITIONS: "all partitions", DdlScope.FIRST_PARTITION: "first partition"}[encoder.ddl_scope]


def has_resolved(protocol: str, given: dict[str, str]) -> bool:
    return bool(both(protocol, given)[0].resolved(COMMIT))


def too_large(protocol: str, given: dict[str, str]) -> str:
    """What may be done with a row that is too large for a message: of each way whether its messages can be written."""
    changes = make_changes(TABLE, Kind.UPDATE, old=[FIRST], new=[SECOND], commit_ts=COMMIT)
    ways = {"handle-key-only": ("handle key alone", None), "claim-check": ("a claim", ["/claims/1.json"])}
    found = []
    for option, (what, claims) in ways.items():
        more = {"large-message-handle-option": option, "claim-check-storage-uri": "file:///tmp/claims"}
        try:
            encoder, _ = both(protocol, {**given, **more})
        except ProtocolConfigError:
            continue
        assert len(handle_only_rows(encoder.table(TABLE), changes, claims)) == 1
        found.append(what)
    return " or ".join(found) or "an error"


ASKED = {
    "insert told from update": lambda *of: "yes" if tells_inserts(*of) else "no",
    "old values": lambda *of: "yes" if has_old_values(*of) else "no",
    "DDL": ddl_scope,
    "resolved events": lambda *of: "yes" if has_resolved(*of) else "no",
    "rows too large for a message": too_large,
}
REFUSED = {"rows too large for a message": "an error"}


def test_protocol_table_in_kafka_page_has_every_protocol() -> None:
    assert {PROTOCOLS[name] for name in TABLE_OF_PAGE} == set(PROTOCOLS.values())
    assert set(ASKED) < set(HEADER)


@pytest.mark.parametrize("column", ASKED)
@pytest.mark.parametrize("protocol", TABLE_OF_PAGE)
def test_protocol_table_cell_equals_encoders_answer(protocol: str, column: str) -> None:
    """`with` names what it needs, without which it is not so; `unless` names what ends it."""
    cell = TABLE_OF_PAGE[protocol][column]
    ask = ASKED[column]
    what = re.split(r",? (?:with|unless) ", cell)[0] if "`" in cell else cell
    needs = dict.fromkeys(re.findall(r"`([a-z-]+)`", cell), "true")
    ends = dict(re.findall(r"`([a-z-]+) = (\w+)`", cell))
    if cell.startswith("with "):
        what = "yes"
    assert ask(protocol, needs) == what
    if needs:
        assert ask(protocol, {}) == REFUSED.get(column, "no")
    if ends:
        assert ask(protocol, ends) == "no"
