"""Vectors of Open Protocol about single values, flags and handle keys."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pytest
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.errors import EncodeError
from drainer.protocol.event import Value
from drainer.protocol.json_read import Reader
from drainer.protocol.open.decoder import image
from drainer.protocol.open.encoder import is_quoted, values_of
from drainer.protocol.table import ColumnFlag, handle_index
from drainer.row.column_type import ColumnType
from tests.golden.open_encoded import encoded, options_of
from tests.golden.vector_files import Vector, only
from tests.support.open_rows import cell_of, table_of_cells
from tests.support.row_changes import make_changes

_FLAGS: Final = {
    "BinaryFlag": ColumnFlag.BINARY,
    "HandleKeyFlag": ColumnFlag.HANDLE_KEY,
    "GeneratedColumnFlag": ColumnFlag.GENERATED,
    "PrimaryKeyFlag": ColumnFlag.PRIMARY_KEY,
    "UniqueKeyFlag": ColumnFlag.UNIQUE_KEY,
    "MultipleKeyFlag": ColumnFlag.MULTIPLE_KEY,
    "NullableFlag": ColumnFlag.NULLABLE,
    "UnsignedFlag": ColumnFlag.UNSIGNED,
}


def written(tp: int, flags: int, value: object) -> str:
    """One value's JSON as the encoder writes it."""
    charset = "binary" if flags & ColumnFlag.BINARY else "utf8mb4"
    column_type = ColumnType.of(FieldType(Tp(tp), 0, 64, 0, charset, charset))
    (text,) = values_of(column_type, options_of(None).zone)(pa.array([value], column_type.decoded_type)).to_pylist()
    shown: str = text.decode()
    return f'"{shown}"' if is_quoted(column_type) else shown


def _read(tp: int, flags: int, text: str) -> Value:
    value = json.loads(text)
    return image(Reader({"c": {"t": tp, "f": flags, "v": value}}, "u"), base64_text=False)["c"].value


def check_escape(vector: Vector) -> None:
    digits, is_binary, tp = only(vector["input"], "bytes_hex flag_binary type")
    inner, text = only(vector["expected"], "v_string json_text")
    flags = ColumnFlag.BINARY if is_binary else ColumnFlag(0)
    assert written(tp, flags, bytes.fromhex(digits)) == text
    assert json.loads(text) == inner
    value = _read(tp, flags, text)
    assert (value if isinstance(value, bytes) else str(value).encode()) == bytes.fromhex(digits)


def check_column(vector: Vector) -> None:
    tp, flag, digits, v = only(vector["input"], "type", "flag value_bytes_hex v")
    text, hexed, utf8 = only(vector["expected"], "", "json_text decodes_to_hex decodes_to_utf8")
    flags, text = ColumnFlag(flag or 0), text or json.dumps(v)
    wanted = bytes.fromhex(hexed) if hexed is not None else utf8.encode()
    assert digits in (None, wanted.hex())
    assert written(tp, flags, wanted) == text
    read = _read(tp, flags, text)
    assert (read if isinstance(read, bytes) else str(read).encode()) == wanted


def check_number(vector: Vector) -> None:
    kind, value = only(vector["input"], "kind value")
    (text,) = only(vector["expected"], "json_text")
    tp = {"float32": Tp.FLOAT, "float64": Tp.DOUBLE}[kind]
    assert written(tp, ColumnFlag.BINARY, float(value)) == text
    assert _read(tp, ColumnFlag.BINARY, text) == float(value)


def check_string(vector: Vector) -> None:
    """Go replaces what is no UTF-8; we refuse to write it."""
    (digits,) = only(vector["input"], "utf8_hex")
    (text,) = only(vector["expected"], "json_text")
    data = bytes.fromhex(digits)
    if data.decode(errors="ignore").encode() == data:
        assert written(Tp.VARCHAR, 0, data) == text
        assert _read(Tp.VARCHAR, 0, text) == data.decode()
        return
    assert "\\ufffd" in text
    cells = [cell_of({"name": "c", "type": 15, "flag": 64, "value_hex": digits[:0]})]
    changes = make_changes(table_of_cells("s", "t", cells), Kind.INSERT, new=[[data]])
    with pytest.raises(EncodeError, match=r"`s`.`t`.`c` at commit_ts \d+: text: not UTF-8"):
        encoded(changes, options_of(None))
    assert _read(Tp.VARCHAR, 0, text) == json.loads(text)


def check_flag(vector: Vector) -> None:
    (value,) = only(vector["input"], "value")
    (names,) = only(vector["expected"], "flags")
    assert ColumnFlag(value) == sum(_FLAGS[name] for name in names)
    assert int(ColumnFlag(sum(_FLAGS[name] for name in names))) == value
    assert image(Reader({"c": {"t": 3, "f": value, "v": 1}}, "u"), base64_text=False)["c"].flags == value


def check_handle(vector: Vector) -> None:
    columns, unique, primary = only(vector["input"], "columns unique_indexes", "primary_key")
    (expected,) = only(vector["expected"], "handle_index_id")
    made = []
    for offset, (name, words) in enumerate(columns.items()):
        known = {"not null", "nullable", "virtual generated"}
        assert set(words.split(", ")) <= known, f"no column this check can read: {words}"
        flag = 0 if "nullable" in words else Flag.NOT_NULL
        expression = "1" if "virtual generated" in words else ""
        made.append(ColumnInfo(offset + 1, name, offset, FieldType(Tp.LONG, flag), generated_expr=expression))
    places = {column.name: column.offset for column in made}
    indexes = []
    for index in [*unique, *([{**primary, "primary": True}] if primary else [])]:
        parts = tuple(IndexColumn(name, places[name]) for name in index["columns"])
        indexes.append(IndexInfo(index["id"], f"k{index['id']}", parts, unique=True, primary="primary" in index))
    chosen = handle_index(TableInfo(id=1, name="t", columns=tuple(made), indexes=tuple(indexes)))
    assert (chosen.id if chosen else None) == expected
