"""An argument of another kind, or one that cannot be: the error names it and what was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pumpclient.sdk import BadDeclaration, BigInt, Column, ConfigError, Enum, Index, Int, Service, Table, VarChar
from pumpclient.sdk import types as t
from tests.unit.pumpclient.sdk.conftest import Shop

ID = Column("id", BigInt(), primary_key=True)
A = Column("a", Int())


def wrong(value: object) -> Any:
    """A value of a kind the type checker would refuse."""
    return value


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: VarChar(wrong("40")), "the length of VARCHAR must be a whole number from 0 to 16383, not '40'"),
        (lambda: VarChar(wrong(True)), "the length of VARCHAR must be a whole number from 0 to 16383, not True"),
        (lambda: VarChar(4, collate=wrong(None)), "collation None belongs to none of utf8mb4, utf8, ascii"),
        (lambda: Enum(wrong(["a", "b"])), "ENUM needs the names as separate arguments, not ['a', 'b']"),
        (lambda: t.Set(wrong(1)), "SET needs the names as separate arguments, not 1"),
        (lambda: Column("a", wrong(BigInt)), "Column 'a': type must be a type such as BigInt() or VarChar(40), not the "
            "function BigInt: call it, BigInt()"),
        (lambda: Column("a", wrong("INT")), "type must be a type such as BigInt() or VarChar(40), not 'INT'"),
        (lambda: Column("a", wrong(int)), "not <class 'int'>"),
        (lambda: Column(wrong(5), Int()), "Column: name must be a str, not 5"),
        (lambda: Column("a", Int(), nullable=wrong("no")), "Column 'a': nullable must be a bool, not 'no'"),
        (lambda: Column("a", Int(), primary_key=wrong(1)), "Column 'a': primary_key must be a bool, not 1"),
        (lambda: Column("a", Int(), comment=wrong(b"x")), "Column 'a': comment must be a str, not b'x'"),
        (lambda: Table("t"), "table t has no columns"),
        (lambda: Table(wrong(7), ID), "table name must be a str, not 7"),
        (lambda: Table("t", ID, wrong("v")), "Table 't': column 2 must be a Column, not 'v'"),
        (lambda: Table("t", wrong([ID])), "Table 't': column 1 must be a Column, not [Column("),
        (lambda: Table("t", ID, primary_key="id"), "Index 'PRIMARY': columns must be a list of columns, not 'id'"),
        (lambda: Table("t", ID, unique={"u": "id"}), "Index 'u': columns must be a list of columns, not 'id'"),
        (lambda: Table("t", ID, unique=wrong(7)), "unique must be a list of columns, not 7"),
        (lambda: Table("t", ID, indexes=[[]]), "indexes: a key names no column"),
        (lambda: Table("t", ID, indexes={"i": []}), "t: key i names no column"),
        (lambda: Table("t", ID, clustered=wrong("yes")), "Table 't': clustered must be a bool, not 'yes'"),
        (lambda: Table("t", ID, unique={"u": ["x"]}), "key u, column x: there is no such column; the columns are id"),
        (lambda: Index("i", wrong([3])), "Index 'i': columns: must be a name or (name, prefix length), not 3"),
        (lambda: Index.over("i", [("a", wrong("5"))]), "Index 'i': columns: must be a name or (name, prefix length), "
            "not ('a', '5')"),
        (lambda: Table("", Column("a", t.Int())), "table name ''"),
        (lambda: Table("x" * 65, Column("a", t.Int())), "1 to 64 characters"),
        (lambda: Table("t", A, Column("A", t.Int())), "column 'A' occurs twice"),
        (lambda: Table("t", A, unique={"k": ["a", "a"]}), "occurs twice"),
        (lambda: Table("t", A, unique=[["a"]], indexes={"A": ["a"]}), "index 'A' occurs twice"),
        (lambda: Table("t", A, unique={"k": [("a", 3)]}), "is not a valid prefix length"),
        (lambda: Table("t", Column("a", t.Text()), unique={"k": ["a"]}), "needs a prefix length"),
        (lambda: Table("t", Column("a", t.JSON()), unique={"k": ["a"]}), "JSON cannot be in a key"),
        (lambda: Table("t", Column("a", t.Int(), primary_key=True, nullable=True)), "cannot be nullable"),
        (lambda: Table("t", Column("a", t.Int(), nullable=False, default=None)), "default NULL"),
        (lambda: Table("t", Column("a ", t.Int())), "no space at the end"),
        (lambda: Table("t", A, unique=["a"]), "unique: a key must be a list of columns, not 'a'"),
        (lambda: t.NumericType(66), "the precision of DECIMAL"),
        (lambda: t.NumericType(5, 6), "the scale of DECIMAL"),
        (lambda: t.Bit(65), "the width of BIT must be a whole number from 1 to 64, not 65"),
        (lambda: t.Bit(0), "the width of BIT"),
        (lambda: t.DateTime(7), "fractional digits of a second"),
        (lambda: t.Char(256), "the length of CHAR"),
        (lambda: t.VarChar(16_384), "the length of VARCHAR"),
        (lambda: t.VarBinary(-1), "the length of VARBINARY"),
        (lambda: t.Enum(), "ENUM needs 1 to 65535 names, not 0"),
        (lambda: t.Enum("a", "A "), "contains the same name twice"),
        (lambda: t.Set(*map(str, range(65))), "SET needs 1 to 64 names, not 65"),
        (lambda: t.Set("a,b"), "must not contain a comma"),
    ],
)  # fmt: skip
def test_invalid_declaration_error_names_argument_and_value(declare: Callable[[], object], text: str) -> None:
    with pytest.raises(BadDeclaration) as caught:
        declare()
    assert text in str(caught.value)


def test_column_without_type_raises_type_error() -> None:
    with pytest.raises(TypeError, match="'type'"):
        Column("a")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "ALTER TABLE shop.t contains no change"),
        ({"add": Column("x", Int())}, "add must be a list of Column, not Column(name='x'"),
        ({"add": ["x"]}, "add[0] must be a Column, not 'x'"),
        ({"drop": "id"}, "drop must be a list of str, not 'id'"),
        ({"drop_index": "id"}, "drop_index must be a list of str, not 'id'"),
        ({"add_index": ["id"]}, "add_index[0] must be a Index, not 'id'"),
        ({"add_unique": {"u": ["id"]}}, "add_unique must be a list of Index, not {'u': ['id']}"),
        ({"modify": {"v": Column("v", Int())}}, "modify must be a list of Column, not {'v': Column("),
        ({"change": [Column("v", Int())]}, "change must be a dict of names to Column, not [Column("),
        ({"change": {"v": "w"}}, "change['v'] must be a Column, not 'w'"),
        ({"rename": "v"}, "rename must be a dict of names to str, not 'v'"),
        ({"rename": {"v": 5}}, "rename['v'] must be a str, not 5"),
        ({"add": [Column("x", Int())], "after": 5}, "after must be a str, not 5"),
        ({"add": [Column("x", Int())], "first": "yes"}, "first must be a bool, not 'yes'"),
        ({"drop": ["v"], "rename": {"v": "w"}}, "rename and drop both name column v; one statement changes a column"),
        ({"drop": ["v"], "add": [Column("V", Int())]}, "add and drop both name column V"),
        ({"add": [Column("x", Int())], "rename": {"v": "w"}, "after": "v"}, "after='v' names a column that this"),
        ({"add_index": [Index.over("i", ["x"])]}, "t: key i, column x: there is no such column; the columns are id, v"),
    ],
)
async def test_invalid_alter_table_argument_error_names_argument_and_value(
    shop: Shop, arguments: dict[str, Any], text: str
) -> None:
    service = await shop.service()
    await service.create_database("shop")
    table = await service.create_table("shop", Table("t", ID, Column("v", Int())))
    with pytest.raises(BadDeclaration) as caught:
        await service.alter_table(table, **arguments)
    assert text in str(caught.value)


async def test_service_methods_refuse_names_where_tables_are_required(shop: Shop) -> None:
    service = await shop.service()
    await service.create_database("shop")
    with pytest.raises(BadDeclaration, match=r"table must be a Table, not 'orders'"):
        await service.drop_table(wrong("orders"))
    with pytest.raises(BadDeclaration, match=r"table must be a Table, not 'orders'"):
        await service.create_table("shop", wrong("orders"))
    with pytest.raises(BadDeclaration, match=r"database name must be a str, not 5"):
        await service.table(wrong(5), "t")
    with pytest.raises(BadDeclaration, match=r"table name must be a str, not None"):
        await service.table("shop", wrong(None))
    txn = await service.begin()
    with pytest.raises(BadDeclaration, match=r"table must be a Table, not 'orders'"):
        txn.insert(wrong("orders"), {})


@pytest.mark.parametrize(
    ("url", "options", "kind", "text"),
    [
        ("ftp://x:1", {}, ConfigError, "pd_urls='ftp://x:1': URL scheme must be"),
        ("10.0.0.9", {}, ConfigError, "pd_urls='10.0.0.9': URL address does not have the form"),
        (5, {}, ConfigError, "pd_urls=5: "),
        ([], {}, ConfigError, "pd_urls=[]: no URL is given"),
        ("h:1", {"strategy": "best"}, ConfigError, "strategy='best': it must be one of range, hash"),
        ("h:1", {"tso_source": "mine"}, ConfigError, "tso_source='mine': Input should be 'auto', 'pd' or 'own'"),
        ("h:1", {"pd_addr": "h"}, ConfigError, "pd_addr='h': 'h' does not have the form host:port"),
        ("h:1", {"write_timeout": 5}, TypeError, "connect has no option write_timeout=5; the options are labels, "),
        ("h:1", {"write_timeout_s": "5"}, TypeError, "write_timeout_s='5': expected int or float, got str"),
        ("h:1", {"write_timeout_s": 0}, ConfigError, "write_timeout_s=0: it must be more than 0"),
        ("h:1", {"security": {"ca": "x"}}, TypeError, "security={'ca': 'x'}: expected Security, got dict"),
        ("h:1", {"on_expired": 5}, TypeError, "on_expired=5: expected a function, got int"),
    ],
)
async def test_connect_refuses_invalid_options_before_any_connection(
    url: Any, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """At once, before anything is reached."""
    with pytest.raises(kind) as caught:
        await Service.connect(url, **options)
    assert text in str(caught.value)
