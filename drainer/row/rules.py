"""Rules for the values of rows: conditions that choose rows, and masks. Pure.

A condition is parsed from the `where` of a rule, checked against a table's columns (schema/rules.py), and evaluated on
decoded values: of one row, or of a column, whose distinct values are then compared once each. Both use one function
for a comparison, so they agree. NULL is as in SQL: a comparison with it is unknown, and an unknown row is not chosen.

    or:         and { OR and }                     operator:  =  !=  <>  <  <=  >  >=
    and:        not { AND not }                    literal:   'text' ('' is a quote)  12  -1.5
    not:        NOT not | ( or ) | comparison      column:    name  `name`
    comparison: column operator literal | column IS [NOT] NULL | column [NOT] IN ( literal, … )
"""

from __future__ import annotations

import hashlib
import hmac
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import BinlogError, ConfigError
from binlog.tidb.flatten import flatten
from binlog.tidb.table import ColumnInfo
from binlog.tidb.types import FieldType, Tp

from drainer.batch.work import Kind
from drainer.row.column_type import ColumnType, DecodedValue, TypeClass
from drainer.row.fast_path import Cells
from drainer.row.layout import EXACT, PADDED, Layout
from drainer.schema.errors import RuleRefused
from drainer.schema.rules import HASH_DIGITS_MIN, AppliedRules, Mask, MaskKind

Literal = str | Decimal
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<text>'(?:[^']|'')*') | (?P<number>-?[0-9]+(?:\.[0-9]+)?) | (?P<name>`(?:[^`]|``)+`)
    | (?P<word>[A-Za-z_$\u0080-\U0010ffff][\w$]*) | (?P<mark><=|>=|!=|<>|[=<>(),]) )""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IS", "NULL", "IN"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """`operator` "in": one of the literals is equal; "is null": there are none."""

    column: str
    operator: str
    literals: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class Combined:
    """`operator`: "and", "or", or "not" of one part."""

    operator: str
    parts: tuple[Comparison | Combined, ...]


Node = Comparison | Combined


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition."""

    root: Node

    @classmethod
    def parse(cls, text: str, owner: str) -> Condition:
        """Raises ConfigError that names `owner` and the position of the character that is not expected."""
        return cls(_Parser(text, owner).whole())

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(one.column for one in _comparisons(self.root))

    def check(self, columns: Mapping[str, ColumnInfo]) -> None:
        for one in _comparisons(self.root):
            comparer(one, ColumnType.of(columns[one.column].type))


def _comparisons(node: Node) -> Iterable[Comparison]:
    if isinstance(node, Comparison):
        yield node
    else:
        for part in node.parts:
            yield from _comparisons(part)


class _Parser:
    """Reads one condition, a token ahead."""

    def __init__(self, text: str, owner: str) -> None:
        self._text, self._owner = text, owner
        self._end = 0
        self._next()

    def whole(self) -> Node:
        found = self._either()
        if self._kind:
            self._fail("AND, OR or the end")
        return found

    def _next(self) -> str:
        """Read the next token and return the one before it. `_kind` '': the end."""
        taken = getattr(self, "_value", "")
        found = _TOKEN.match(self._text, self._end)
        rest = self._text[self._end :]
        self._begin = self._end + len(rest) - len(rest.lstrip())
        if found is None:
            self._kind, self._value = "", ""
            if rest.strip():
                self._fail("a column, a value or an operator")
            return taken
        self._kind, self._value, self._end = str(found.lastgroup), found[str(found.lastgroup)], found.end()
        if self._kind == "word" and self._value.upper() in _KEYWORDS:
            self._kind, self._value = "keyword", self._value.upper()
        return taken

    def _took(self, value: str) -> bool:
        if self._kind not in ("keyword", "mark") or self._value != value:
            return False
        self._next()
        return True

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self._text[self._begin :][:20]) if self._begin < len(self._text) else "the end"
        raise ConfigError(f"{self._owner}: where, character {self._begin + 1}: expected {expected}, found {found}")

    def _either(self) -> Node:
        parts = [self._all()]
        while self._took("OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Combined("or", tuple(parts))

    def _all(self) -> Node:
        parts = [self._one()]
        while self._took("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Combined("and", tuple(parts))

    def _one(self) -> Node:
        if self._took("NOT"):
            return Combined("not", (self._one(),))
        if self._took("("):
            found = self._either()
            self._expect(")")
            return found
        return self._comparison()

    def _expect(self, mark: str) -> None:
        if not self._took(mark):
            self._fail(mark)

    def _comparison(self) -> Node:
        if self._kind not in ("word", "name"):
            self._fail("a column")
        quoted = self._kind == "name"
        name = self._next()
        column = (name[1:-1].replace("``", "`") if quoted else name).lower()
        if self._took("IS"):
            negative = self._took("NOT")
            self._expect("NULL")
            return _negated(Comparison(column, "is null"), negative)
        negative = self._took("NOT")
        if negative or (self._kind, self._value) == ("keyword", "IN"):
            self._expect("IN")
            self._expect("(")
            literals = [self._literal()]
            while self._took(","):
                literals.append(self._literal())
            self._expect(")")
            return _negated(Comparison(column, "in", tuple(literals)), negative)
        if self._kind != "mark" or self._value not in _OPERATORS:
            self._fail("=, !=, <>, <, <=, >, >=, IS or IN")
        return Comparison(column, self._next(), (self._literal(),))

    def _literal(self) -> Literal:
        kind = self._kind
        if kind not in ("text", "number"):
            self._fail("a text in single quotes or a number (for NULL: IS NULL)")
        value = self._next()
        return value[1:-1].replace("''", "'") if kind == "text" else Decimal(value)


def _negated(node: Node, negative: bool) -> Node:
    return Combined("not", (node,)) if negative else node


def comparer(one: Comparison, column_type: ColumnType) -> Callable[[Any], bool]:
    """From a decoded value that is not NULL to whether the comparison is true. Raises ConfigError if the column's type
    does not allow it."""
    if one.operator == "is null":
        return lambda _: False
    ordered = one.operator not in ("=", "!=", "<>", "in")
    shown, literal = _shown(one.column, column_type, ordered=ordered)
    values = tuple(literal(given) for given in one.literals)
    if one.operator == "in":
        return lambda value: shown(value) in values
    compare, other = _OPERATORS[one.operator], values[0]
    return lambda value: compare(shown(value), other)


def _shown(
    column: str, column_type: ColumnType, *, ordered: bool
) -> tuple[Callable[[Any], Any], Callable[[Literal], Any]]:
    """Return two functions: one makes the value that is compared from a decoded value, the other from a literal."""
    type_class, kind = column_type.type_class, column_type.kind
    where = f"where: column {column} is {kind.mysql_name}"

    def number(literal: Literal) -> Decimal:
        if isinstance(literal, str):
            raise ConfigError(f"{where}: compare it with a number, not with {literal!r}")
        return literal

    def text(literal: Literal) -> str:
        if not isinstance(literal, str):
            raise ConfigError(f"{where}: compare it with a text in quotes, not with {literal}")
        return literal

    if type_class in (TypeClass.INT, TypeClass.BIT):
        return (lambda value: value), number
    if type_class is TypeClass.DECIMAL:
        return Decimal, number
    if type_class is TypeClass.FLOAT:
        return (lambda value: value), lambda literal: float(number(literal))
    if type_class is TypeClass.BYTES or (type_class is TypeClass.TEXT and kind.collate in EXACT):
        return (lambda value: value), lambda literal: text(literal).encode()
    # TiDB compares what is before the trailing spaces, and gbk_bin by the bytes of GBK, which are not those here.
    if type_class is TypeClass.TEXT and kind.collate in PADDED and not (ordered and kind.collate == "gbk_bin"):
        return (lambda value: value.rstrip(b" ")), lambda literal: text(literal).encode().rstrip(b" ")
    if type_class is TypeClass.TEXT:
        raise ConfigError(f"{where}, and its collation {kind.collate} is none that can be compared here")
    if type_class is TypeClass.ENUM and not ordered:
        names = ("", *kind.elems)
        return (lambda value: names[value] if value < len(names) else None), text
    if type_class in (TypeClass.DATE, TypeClass.DATETIME, TypeClass.TIME):
        as_type = replace(kind, tp=Tp.DURATION if type_class is TypeClass.TIME else Tp.DATETIME, decimal=6)
        return (lambda value: value), lambda literal: _moment(text(literal), as_type, where)
    raise ConfigError(f"{where}, which cannot be compared {'by order ' * ordered}here")


def _moment(text: str, kind: FieldType, where: str) -> int:
    try:
        value = flatten(text, kind)
    except (ValueError, TypeError, BinlogError) as error:
        raise ConfigError(f"{where}: {text!r} is no value of it: {error}") from None
    assert isinstance(value, int)
    return int(value)


Truth = bool | None
_OfRow = Callable[[Cells], Truth]
_OfColumns = Callable[[Sequence[Any]], Any]


def _compiled(node: Node, layout: Layout, indexes: Mapping[str, int]) -> tuple[_OfRow, _OfColumns]:
    """(truth of a row's decoded values, Arrow array of the truths of columns)."""
    if isinstance(node, Comparison):
        at = indexes[node.column]
        if node.operator == "is null":
            return (lambda cells: cells[at] is None), lambda columns: pc.is_null(columns[at])
        compare = comparer(node, layout.column_types[at])
        of_values: Callable[[Any], Any] = lambda columns: mapped(columns[at], compare, pa.bool_())  # noqa: E731
        return (lambda cells: None if cells[at] is None else compare(cells[at])), of_values
    parts = [_compiled(part, layout, indexes) for part in node.parts]
    rows, columns_ = [row for row, _ in parts], [column for _, column in parts]
    if node.operator == "not":
        return (lambda cells: _not(rows[0](cells))), lambda columns: pc.invert(columns_[0](columns))
    stops = node.operator == "or"  # the truth that decides whatever the others are
    join = pc.or_kleene if stops else pc.and_kleene

    def of_row(cells: Cells) -> Truth:
        truths = [row(cells) for row in rows]
        return stops if stops in truths else None if None in truths else not stops

    def of_columns(columns: Sequence[Any]) -> Any:
        found = columns_[0](columns)
        for one in columns_[1:]:
            found = join(found, one(columns))
        return found

    return of_row, of_columns


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def mapped(column: Any, function: Callable[[Any], Any], kind: Any) -> Any:
    """Apply a function to the distinct values of a column; NULL stays NULL."""
    encoded = column.dictionary_encode()
    return pa.array([function(value) for value in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def mask_function(mask: Mask, column_type: ColumnType) -> Callable[[Any], DecodedValue]:
    """From a decoded value that is not NULL to what the destination gets."""
    kind = column_type.kind
    if mask.kind is MaskKind.CONSTANT:
        constant = column_type.decoded_value(flatten(mask.text, kind))
        return lambda _: constant
    if mask.kind is MaskKind.LAST_FOUR:
        return _last_four
    key = mask.text.encode()
    digits = kind.flen if HASH_DIGITS_MIN <= kind.flen < 64 else 64
    filled = kind.flen if kind.tp is Tp.STRING and kind.charset == "binary" else 0  # a BINARY has its whole length
    return lambda value: hmac.new(key, value, hashlib.sha256).hexdigest()[:digits].encode().ljust(filled, b"\0")


def _last_four(value: bytes) -> bytes:
    """Of a text of at most four characters nothing is kept."""
    text = value.decode(errors="surrogateescape")
    kept = text[-4:] if len(text) > 4 else ""
    return ("*" * (len(text) - len(kept)) + kept).encode(errors="surrogateescape")


class RowRules:
    """What rules do to the rows of one layout."""

    def __init__(self, layout: Layout, applied: AppliedRules) -> None:
        """Raises RuleRefused for a condition that the type of a column does not allow, which it had when the rows were
        written."""
        indexes = {target.name.lower(): number for number, target in enumerate(layout.targets)}
        by_id = {target.id: number for number, target in enumerate(layout.targets)}
        self._where: tuple[_OfRow, _OfColumns] | None = None
        self.columns: frozenset[int] = frozenset()
        if isinstance(applied.where, Condition):
            self.columns = frozenset(indexes[name] for name in applied.where.columns)
            try:
                self._where = _compiled(applied.where.root, layout, indexes)
            except ConfigError as error:
                raise RuleRefused(f"table {applied.schema}.{applied.info.name}: {error}") from None
        types = layout.column_types
        self._masks = {by_id[i]: mask_function(mask, types[by_id[i]]) for i, mask in applied.masks if i in by_id}
        self._types = types

    def row(self, kind: Kind, old: Cells | None, new: Cells | None) -> tuple[Kind, Cells | None, Cells | None] | None:
        """What becomes of a change; None: nothing. An update is an insert if only its new row is chosen, and a delete
        if only its old one is."""
        if self._where is not None:
            chosen = self._where[0]
            old = old if old is not None and chosen(old) else None
            new = new if new is not None and chosen(new) else None
            if old is None and new is None:
                return None
            kind = Kind.INSERT if old is None else Kind.DELETE if new is None else Kind.UPDATE
        return kind, self._masked(old), self._masked(new)

    def _masked(self, cells: Cells | None) -> Cells | None:
        if cells is None or not self._masks:
            return cells
        made = list(cells)
        for at, mask in self._masks.items():
            made[at] = None if made[at] is None else mask(made[at])
        return made

    def kinds(
        self, old: Sequence[Any] | None, new: Sequence[Any] | None, count: int
    ) -> Iterator[tuple[Kind, npt.NDArray[np.bool_]]]:
        """Yield each kind of change with the changes (a mask of `count`) that become that kind, as `row` does for one.
        The images must have the columns of the condition."""
        was, now = (self._chosen(image, count).to_numpy(zero_copy_only=False) for image in (old, new))
        for kind, chosen in ((Kind.INSERT, now & ~was), (Kind.UPDATE, now & was), (Kind.DELETE, was & ~now)):
            if chosen.any():
                yield kind, chosen

    def _chosen(self, columns: Sequence[Any] | None, count: int) -> Any:
        """Which rows of an image are chosen, as an Arrow array."""
        if columns is None or self._where is None:
            return pa.repeat(pa.scalar(columns is not None), count)
        return self._where[1](columns).fill_null(False)

    def masked(self, columns: Sequence[Any] | None) -> tuple[Any, ...] | None:
        """The columns of an image as the destination gets them; a column that was not decoded is None."""
        if columns is None:
            return None
        return tuple(
            column if column is None or at not in self._masks else mapped(column, self._masks[at], column.type)
            for at, column in enumerate(columns)
        )
