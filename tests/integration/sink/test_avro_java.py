"""The reference implementation of Avro, Java's, which registries' deserialisers are made of, reads what we write."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from binlog.tidb.time import Civil, pack
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.schema import table_schemas
from drainer.protocol.registry import ProtocolOptions
from drainer.row.column_type import DecodedValue
from tests.support.avro_tables import TOPIC, ready
from tests.support.encoded import encoded_rows
from tests.support.jvm import PYSPARK_JARS, running_jvm
from tests.support.row_changes import make_changes, make_table
from tests.unit.drainer.protocol.avro.cases import CASES
from tests.unit.drainer.protocol.avro.test_schema import with_default

pytestmark = [pytest.mark.slow, pytest.mark.integration]

_JARS = ("avro", "jackson-core", "jackson-databind", "jackson-annotations", "slf4j-api", "commons-compress")
OPTIONS = ProtocolOptions("avro", enable_tidb_extension=True, avro_output_old_row=True)
VALUES: dict[str, list[DecodedValue]] = {
    "tinyint": [-128, 127, 0],
    "int unsigned": [0, (1 << 32) - 1, 1 << 31],
    "bigint": [-(1 << 63), (1 << 63) - 1, -1],
    "bigint unsigned": [(1 << 64) - 1, 0, 1 << 63],
    "year": [1901, 2155, 0],
    "float": [1.5, -0.0, 3.4028234663852886e38],
    "double": [0.1, -1e300, 5e-324],
    "decimal(10,4)": ["-0.0128", "999999.9999", "0.0000"],
    "decimal(38,0)": ["-" + "9" * 38, str(-(1 << 71)), "128"],
    "decimal(65,30)": ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1", "-0." + "0" * 27 + "128"],
    "varchar": ["größe 中文 😀".encode(), b"", b"x" * 200],
    "blob": [b"\0\xff", b"", bytes(range(256))],
    "date": [0, pack(Civil(2026, 11, 22)), pack(Civil(9999, 12, 31))],
    "timestamp(6)": [0, pack(Civil(2026, 11, 22, 1, 2, 3, 4)), pack(Civil(2038, 1, 1))],
    "time(6)": [-3020399 * 10**9, 0, 1_000],
    "enum": [1, 2, 0],
    "set": [15, 0, 2],
    "bit(64)": [(1 << 64) - 1, 0, 256],
}


class Java:
    """org.apache.avro in a JVM. Its classes are looked up once, which takes long."""

    def __init__(self, jvm: Any) -> None:
        avro = jvm.org.apache.avro
        self._parser, self._reader = avro.Schema.Parser, avro.generic.GenericDatumReader
        self._writer, self._decimals = avro.generic.GenericDatumWriter, avro.Conversions.DecimalConversion()
        self._decoders, self._encoders = avro.io.DecoderFactory.get(), avro.io.EncoderFactory.get()
        self._types, self._wrap = avro.LogicalTypes, jvm.java.nio.ByteBuffer.wrap
        self._input, self._output = jvm.java.io.ByteArrayInputStream, jvm.java.io.ByteArrayOutputStream

    def schema(self, text: str) -> Any:
        return self._parser().parse(text)

    def read(self, data: bytes, written: str, wanted: str = "") -> Any:
        """A generic record, by the schema it was written under and one that is wanted."""
        schema = self.schema(written)
        reader = self._reader(schema, self.schema(wanted) if wanted else schema)
        stream = self._input(bytearray(data))
        found = reader.read(None, self._decoders.directBinaryDecoder(stream, None))
        assert stream.available() == 0
        return found

    def write(self, record: Any) -> bytes:
        out = self._output()
        encoder = self._encoders.directBinaryEncoder(out, None)
        self._writer(record.getSchema()).write(record, encoder)
        encoder.flush()
        return bytes(out.toByteArray())

    def decimal(self, data: bytes, precision: int, scale: int) -> str:
        kind = self._types.decimal(precision, scale)
        return format(self._decimals.fromBytes(self._wrap(bytearray(data)), None, kind), "f")


@pytest.fixture(scope="module")
def avro(java: None) -> Iterator[Java]:
    needed = [jar for name in _JARS for jar in PYSPARK_JARS.glob(f"{name}-[0-9]*.jar")]
    with running_jvm(needed) as gateway:
        yield Java(gateway.jvm)


def test_java_avro_reads_every_type_and_writes_equal_bytes(avro: Java) -> None:
    """Decimals among them, in which fastavro differs; NULLs, and the old row within the new one."""
    columns = [("id", FieldType(Tp.LONG, Flag.NOT_NULL))]
    for n, name in enumerate(VALUES):
        columns += [(f"n{n}", CASES[name].kind), (f"c{n}", CASES[name].not_null().kind)]
    table = make_table("shop", "t", columns, primary=["id"])
    encoder, schemas = ready(table, OPTIONS)
    rows: list[list[DecodedValue]] = [
        [place, *(value for of in VALUES.values() for value in (of[place], of[place]))] for place in range(3)
    ]
    rows.append([3, *(value for of in VALUES.values() for value in (None, of[0]))])
    old = rows[1:] + rows[:1]
    for row in encoded_rows(encoder.table(table, TOPIC), make_changes(table, Kind.UPDATE, old=old, new=rows)):
        for data, schema_id in ((row.key, 1), (row.value, 2)):
            assert data is not None
            record = avro.read(data[5:], schemas(schema_id))
            assert avro.write(record) == data[5:]
    assert row.value is not None
    shown = json.loads(avro.read(row.value[5:], schemas(2)).toString())
    assert [shown[f"n{n}"] for n in range(len(VALUES))] == [None] * len(VALUES)
    assert shown["_tidb_op"] == "u"
    assert shown["_ticdc_before"]["id"] == 0
    text = list(VALUES).index("varchar")
    assert shown[f"c{text}"] == "größe 中文 😀"
    assert shown["_ticdc_before"][f"n{text}"] == shown[f"c{text}"]


def test_java_avro_reads_decimals_unchanged(avro: Java) -> None:
    dice = random.Random(1)
    table = make_table("s", "t", [("d", FieldType(Tp.NEWDECIMAL, Flag.NOT_NULL, 20, 3))])
    encoder, _ = ready(table, ProtocolOptions("avro"))
    numbers = [0, 1, -1, 127, 128, -128, -129, *(dice.randrange(-(10**20) + 1, 10**20) for _ in range(40))]
    texts: list[DecodedValue] = [f"{'-' if n < 0 else ''}{abs(n) // 1000}.{abs(n) % 1000:03d}" for n in numbers]
    made = encoded_rows(encoder.table(table, TOPIC), make_changes(table, Kind.INSERT, new=[[text] for text in texts]))
    assert [avro.decimal(row.value[6:], 20, 3) for row in made if row.value is not None] == texts


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (FieldType(Tp.BLOB), {"default": "ä"}, "Ã¤"),
        (FieldType(Tp.BIT, flen=10), {"default_bit": b"\x02\xaa"}, "\x02ª"),
        (FieldType(Tp.NEWDECIMAL, flen=5, decimal=2), {"default": "1.28"}, "\x00\x80"),
        (FieldType(Tp.LONG), {"default": "7"}, 7),
        (FieldType(Tp.VARCHAR, charset="utf8mb4"), {"default": "null"}, "null"),
        (FieldType(Tp.TIMESTAMP), {"default": "CURRENT_TIMESTAMP"}, None),
        (FieldType(Tp.DOUBLE), {}, None),
    ],
)
def test_java_avro_fills_added_column_with_its_default(
    avro: Java, kind: FieldType, default: dict[str, Any], shown: object
) -> None:
    """`avro-defaults` = "avro": a message from before ADD COLUMN, read by the schema behind it. Java shows bytes as the
    code points of their numbers."""
    options = ProtocolOptions("avro", avro_defaults="avro")
    before = make_table("s", "t", [("a", FieldType(Tp.LONG))])
    encoder, schemas = ready(before, options)
    (row,) = encoded_rows(encoder.table(before, TOPIC), make_changes(before, Kind.INSERT, new=[[1]]))
    added = with_default(kind, **default)
    after = make_table("s", "t", [("a", FieldType(Tp.LONG)), ("c", kind)])
    newest = table_schemas(type(after)(after.schema, after.info, (*before.columns, *added.columns), 2, 2), options)
    assert row.value is not None
    found = avro.read(row.value[5:], schemas(1), newest.value)
    assert json.loads(found.toString()) == {"a": 1, "c": shown}


@pytest.mark.parametrize("mode", ["ticdc", "avro"])
def test_java_avro_parses_schemas_of_every_type_and_default(avro: Java, mode: Any) -> None:
    defaults = {"varchar": "x", "int unsigned": "5", "double": "2.5", "blob": "b", "enum": "a", "float": "3.14"}
    for name, case in CASES.items():
        for kind in (case.kind, case.not_null().kind):
            more = {"default": defaults[name]} if name in defaults else {}
            text = table_schemas(with_default(kind, **more), ProtocolOptions("avro", avro_defaults=mode)).value
            assert avro.schema(text).getFields().size() == 1
