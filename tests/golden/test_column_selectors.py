"""The recordings with column selectors, in every protocol: what is read back is what the whole table's messages have,
without the columns that are left out; and schemas say of them what TiCDC's say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drainer.changes import ChangeSegment
from drainer.dispatch.ddl_messages import ddl_messages
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import ColumnSelectors, Router, SelectorRule
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.avro.schema import avro_name
from drainer.protocol.encoder import Encoder, Message, RequiredSchema, SchemaIds, merged
from drainer.protocol.event import Image, RowEvent
from drainer.protocol.registry import make_decoder, make_encoder
from drainer.protocol.table import RowChanges
from drainer.schema.steps import Ddl
from tests.golden.test_dispatch import PROTOCOLS, Step, steps_of
from tests.support.capture import GOLDEN, find_sets
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.protocol_options import protocol_options

pytestmark = pytest.mark.timeout(600)

SETS = {one.name: one for one in find_sets(GOLDEN)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selectors")


def selectors_of(steps: Sequence[Step]) -> ColumnSelectors:
    """Of every table that rows have, without half of the columns that no key has. A table of the recording keeps its
    name, and the columns of its keys under every DDL."""
    dropped: dict[str, set[str]] = {}
    keyed: dict[str, set[str]] = {}
    for step in steps:
        for changes in RowEvents().of(step) if isinstance(step, ChangeSegment) else ():
            info, name = changes.table.info, f"{changes.table.schema}.{changes.table.name}"
            in_keys = {column.name for index in info.unique_indexes() for column in info.index_columns(index)}
            keyed.setdefault(name, set()).update(in_keys)
            others = [column.name for column in changes.table.columns if column.name not in in_keys]
            dropped.setdefault(name, set()).update(others[1::2])
    rules = []
    for name, columns in dropped.items():
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        gone = [f"!`{column}`" for column in sorted(columns - keyed[name])]
        rules.append(SelectorRule(matcher=(quoted,), columns=("*", *gone)))
    return ColumnSelectors.parse(rules)


class Schemas:
    """Gives ids to schemas, and finds them again."""

    def __init__(self) -> None:
        self.ids: SchemaIds = {}
        self._texts: list[str] = []

    def add(self, required: Sequence[RequiredSchema]) -> SchemaIds:
        for one in required:
            if one.fingerprint not in self.ids.get(one.subject, {}):
                self._texts.append(one.schema)
                self.ids = merged(self.ids, [(one, len(self._texts))])
        return self.ids

    def schema(self, schema_id: int) -> str:
        assert isinstance(schema_id, int)
        return self._texts[schema_id - 1]


class Written:
    """Rows as messages, and as what a reader makes of them. `required`: the schemas that Avro registers."""

    def __init__(self, protocol: str) -> None:
        options = protocol_options({"protocol": protocol, "schema-registry": "http://r", **PROTOCOLS[protocol]})
        self._schemas = Schemas()
        self.required: list[RequiredSchema] = []
        self._encoder = make_encoder(options)
        self._decoder = (
            AvroDecoder(options, self._schemas.schema)
            if isinstance(self._encoder, AvroEncoder)
            else make_decoder(options)
        )
        self._told: set[object] = set()

    def add(self, changes: RowChanges) -> tuple[list[Message], list[RowEvent]]:
        encoder: Encoder = self._encoder
        table, topic = changes.table, f"{changes.table.schema}.{changes.table.name}"
        if isinstance(self._encoder, AvroEncoder):
            wanted = self._encoder.required_schemas(topic, table)
            self.required += wanted
            encoder = self._encoder.with_ids(self._schemas.add(wanted))
        messages = [] if table.key in self._told else encoder.bootstrap(table, 0)
        self._told.add(table.key)
        messages += [
            one for row in encoded_rows(encoder.table(table, topic), changes) for one in framed_rows(encoder, [row])
        ]
        events = [event for one in messages for event in self._decoder.decode(one.key, one.value)]
        return messages, [event for event in events if isinstance(event, RowEvent)]


def plain(image: Image | None) -> dict[str, Any] | None:
    return None if image is None else {name: column.value for name, column in image.items()}


def cut(image: Image | None, names: frozenset[str]) -> dict[str, Any] | None:
    found = plain(image)
    return None if found is None else {name: value for name, value in found.items() if name in names}


def without_protocol(event: RowEvent) -> tuple[object, ...]:
    return event.change, event.commit_ts, event.schema, event.table, event.row_id, event.partition_id


def fields_of(document: object) -> set[str]:
    """Names of the fields of Debezium's schemas of rows."""
    assert isinstance(document, dict)
    images = [one for one in document["schema"]["fields"] if one["field"] in ("before", "after")]
    return {field["field"] for image in images for field in image["fields"]}


# Every type in each protocol; keys and DDLs of all kinds in one.
CASES = [("types", protocol) for protocol in PROTOCOLS] + [
    (name, "open-protocol") for name in sorted(SETS) if name != "types"
]


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_selected_columns_in_every_protocol_equal_the_whole_rows_cut(name: str, protocol: str, directory: Path) -> None:
    steps = steps_of(SETS[name], directory)
    selectors = selectors_of(steps)
    whole, some = Written(protocol), Written(protocol)
    shown = avro_name if protocol == "avro" else str
    rows = left_out = 0
    for step in steps:
        if not isinstance(step, ChangeSegment):
            continue
        pairs = zip(RowEvents().of(step), RowEvents(selectors=selectors).of(step), strict=True)
        for changes, cut_changes in pairs:
            assert changes.order.tolist() == cut_changes.order.tolist()
            names = frozenset(map(shown, (column.name for column in cut_changes.table.columns)))
            gone = set(map(shown, (column.name for column in changes.table.columns))) - names
            (_, wanted), (messages, found) = whole.add(changes), some.add(cut_changes)
            assert list(map(without_protocol, found)) == list(map(without_protocol, wanted))
            for one, other in zip(wanted, found, strict=True):
                assert plain(other.new) == cut(one.new, names)
                assert plain(other.old) == cut(one.old, names)
                assert plain(other.key) == plain(one.key)
            if protocol == "debezium":
                assert all(fields_of(json.loads(one.value or b"")) == names for one in messages)
            rows, left_out = rows + len(found), left_out + len(found) * bool(gone)
    assert rows > 100 and left_out > 50
    for required in some.required:
        assert not gone_of(selectors, required.subject) & names_in(json.loads(required.schema))


def gone_of(selectors: ColumnSelectors, subject: str) -> set[str]:
    """Columns of the table of an Avro subject that are left out."""
    rules = [one.rule for one in selectors.selectors]
    its = [one for one in rules if subject.startswith(one.matcher[0].replace("`", "").replace(".", "_") + "-")]
    return {avro_name(pattern[2:-1]) for rule in its for pattern in rule.columns[1:]}


def names_in(document: Mapping[str, Any]) -> set[str]:
    return {field["name"] for field in document["fields"]}


def test_ddl_messages_with_column_selectors_have_all_columns(directory: Path) -> None:
    """As TiCDC's: the texts name them, and Simple's schemas and Debezium's table changes are of the table upstream."""
    steps = steps_of(SETS["types"], directory)
    selectors = selectors_of(steps)
    router = Router([], "all", selectors=[one.rule for one in selectors.selectors])
    encoders = [make_encoder(protocol_options({"protocol": protocol})) for protocol in ("simple", "debezium")]
    told = 0
    for step in steps:
        for message in ddl_messages(step, router) if isinstance(step, Ddl) else ():
            table = message.ddl.after
            if table is None or selectors.select(table).column_indexes is None:
                continue
            wanted = {column.name for column in table.info.public_columns}
            (ddl,), (bootstrap,) = encoders[0].ddl(message.ddl), encoders[0].bootstrap(selectors.select(table).table, 0)
            for one in (ddl, bootstrap):
                assert {column["name"] for column in json.loads(one.value or b"")["tableSchema"]["columns"]} == wanted
            (ddl,) = encoders[1].ddl(message.ddl)
            for change in json.loads(ddl.value or b"")["payload"]["tableChanges"]:
                assert {column["name"] for column in change["table"]["columns"]} == wanted
            told += 1
    assert told > 3
