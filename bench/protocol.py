"""Measure the encoding of rows as messages, for each protocol, in CPU time of one run: µs a row, and the ratio to
json.dumps.

    python -m bench.protocol [--rows 20000] [--protocol open-protocol] [--profile]

`sbtest` is pumpload's table (4 columns), `wide` has ten columns of ten types, `plain` the same without the JSON,
because json.dumps does not have to decode its binary form. `inserts` have one image, `updates` two. Both sides begin
with values in memory: this project's encoders with columns of decoded values, json.dumps with a dict of Python values
for each row. json.dumps writes the plain row (names and values), and for the JSON protocols also exactly the same
documents. Avro is also compared with fastavro, with the same schema and the same values. Encoding is measured alone,
and with framing into messages. Each figure is the least of several runs.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo

from bench.report import Report
from bench.rowcodec import SBTEST, WIDE, least_us, sbtest_row, wide_row
from drainer.batch.work import Kind
from drainer.protocol.avro.encoder import AvroEncoder
from drainer.protocol.encoder import Encoder, merged
from drainer.protocol.event import RowEvent
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import OpenEncoder
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions, make_encoder
from drainer.protocol.table import RowChanges, Table, table_of
from drainer.row.column_type import ColumnType
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.row_case import table
from tests.support.row_changes import make_changes

PLAIN = table([(column.name, column.type) for column in WIDE.columns if column.name != "doc"], handle="id")


def plain_row(number: int, dice: random.Random) -> dict[int, Datum]:
    return {id_: value for id_, value in wide_row(number, dice).items() if id_ != 9}


CASES: dict[str, tuple[TableInfo, Callable[[int, random.Random], dict[int, Datum]]]] = {
    "sbtest": (SBTEST, sbtest_row),
    "plain": (PLAIN, plain_row),
    "wide": (WIDE, wide_row),
}
TOPIC = "bench"
OPEN = ProtocolOptions("open-protocol")


def changes_of(
    info: TableInfo,
    row: Callable[[int, random.Random], dict[int, Datum]],
    count: int,
    kind: Kind,
    schema: str = "shop",
) -> RowChanges:
    shown = table_of(schema, info, [(column.id, ColumnType.of(column.type)) for column in info.columns], 1, 1)
    dice = random.Random(1)
    images = [
        [
            [
                column.column_type.decoded_value(value)
                for column, value in zip(shown.columns, row(n, dice).values(), strict=True)
            ]
            for n in range(1, count + 1)
        ]
        for _ in range(2)
    ]
    stamps = range(449012345678901234, 449012345678901234 + count)
    return make_changes(shown, kind, old=images[0] if kind is Kind.UPDATE else None, new=images[1], commit_ts=stamps)


def documents(changes: RowChanges) -> tuple[list[dict[str, Any]], list[tuple[Any, Any]]]:
    """Return the rows by name, and the keys and values of Open Protocol, parsed."""
    encoder = OpenEncoder(OPEN)
    rows = encoded_rows(encoder.table(changes.table, TOPIC), changes)
    events = [e for m in framed_rows(encoder, rows) for e in OpenDecoder(OPEN).decode(m.key, m.value)]
    plain = [
        {
            name: {c: _text(v.value) for c, v in image.items()}
            for name, image in (("old", e.old), ("new", e.new))
            if image
        }
        for e in events
        if isinstance(e, RowEvent)
    ]
    return plain, [(json.loads(row.key or b""), json.loads(row.value or b"")) for row in rows]


def _text(value: object) -> object:
    return b64encode(value).decode() if isinstance(value, bytes) else value


def encoder_of(protocol: str, table: Table) -> Encoder:
    options = ProtocolOptions(protocol, schema_registry="http://registry", enable_tidb_extension=True)
    made = make_encoder(options)
    if isinstance(made, AvroEncoder):
        schemas = made.required_schemas(TOPIC, table)
        made = made.with_ids(merged({}, [(schema, 1) for schema in schemas]))
    return made


def dumps_rows(rows: Sequence[object]) -> None:
    for row in rows:
        json.dumps(row).encode()


def dumps_documents(pairs: Sequence[tuple[object, object]]) -> None:
    for key, value in pairs:
        json.dumps(key).encode()
        json.dumps(value).encode()


def fastavro_us(made: AvroEncoder, changes: RowChanges) -> float:
    """Return the time of fastavro for the same values under the same schema."""
    schema = fastavro.parse_schema(json.loads(made.required_schemas(TOPIC, changes.table)[-1].schema))
    values = [row.value for row in encoded_rows(made.table(changes.table, TOPIC), changes)]
    natives = [fastavro.schemaless_reader(BytesIO((value or b"")[5:]), schema, None) for value in values]

    def write() -> None:
        for native in natives:
            fastavro.schemaless_writer(BytesIO(), schema, native)

    return least_us(write, len(natives))


def measure(report: Report, case: str, changes: RowChanges, protocols: Sequence[str]) -> None:
    count, every = len(changes), np.arange(len(changes))
    plain, pairs = documents(changes)
    rows_name, documents_name = f"{case}, json.dumps of the rows", f"{case}, json.dumps of open-protocol's documents"
    report.add(rows_name, least_us(lambda: dumps_rows(plain), count), "µs/row")
    report.add(documents_name, least_us(lambda: dumps_documents(pairs), count), "µs/row")
    for protocol in protocols:
        encoder = encoder_of(protocol, changes.table)
        compiled = encoder.table(changes.table, TOPIC)
        rows = encoded_rows(compiled, changes)
        encode = compiled.encode_joinable if encoder.joins_transactions else compiled.encode_columns
        parts = encode(changes)
        name = f"{case}, {protocol}"
        report.add(name, least_us(lambda e=encode: e(changes), count), "µs/row")  # type: ignore[misc]
        framing = least_us(lambda e=encoder, p=parts: [*e.frame_columns(p, every)], count)  # type: ignore[misc]
        report.add(f"{name}, framing", framing, "µs/row")
        report.ratio(rows_name, name)
        if protocol == "open-protocol":
            report.ratio(documents_name, name)
        elif (rows[0].value or b"").startswith(b"{"):
            own = [(json.loads(row.key or b"null"), json.loads(row.value or b"")) for row in rows]
            theirs = f"{name}, json.dumps of its documents"
            report.add(theirs, least_us(lambda d=own: dumps_documents(d), count), "µs/row")  # type: ignore[misc]
            report.ratio(theirs, name)
        if isinstance(encoder, AvroEncoder):
            report.add(f"{name}, fastavro", fastavro_us(encoder, changes), "µs/row")
            report.ratio(f"{name}, fastavro", name)


def profile(changes: RowChanges, protocol: str) -> None:
    encoder = encoder_of(protocol, changes.table)
    compiled = encoder.table(changes.table, TOPIC)
    with cProfile.Profile() as found:
        for _ in range(5):
            list(encoder.frame_columns(compiled.encode_columns(changes), np.arange(len(changes))))
    pstats.Stats(found).sort_stats("tottime").print_stats(18)


def main() -> None:
    first = {package: name for name, package in reversed([*PROTOCOLS.items()])}  # each alias once
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--protocol", action="append", choices=sorted(first.values()))
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    protocols = given.protocol or sorted(first.values())
    report = Report(f"rows to messages, {given.rows:,} rows")
    for case, (info, row) in CASES.items():
        for kind in (Kind.INSERT, Kind.UPDATE):
            changes = changes_of(info, row, given.rows, kind)
            measure(report, f"{case} {kind.name.lower()}s", changes, protocols)
            if given.profile:
                profile(changes, protocols[0])


if __name__ == "__main__":
    main()
