"""Which tables can be moved to another schema without changing the remaining ones.

A trigger cannot be moved with its table. A foreign key that refers to the table would follow it, and would still refer
to the bin when upstream creates a table of the old name. The table's own foreign keys are dropped first, because their
names are unique in a schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drainer.sink.mysql.connection import ServerError, ServerSession

# No PROCESS privilege, or no such information_schema table.
_NOT_TOLD = frozenset({1044, 1109, 1115, 1142, 1146, 1227})


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A constraint of `child` that refers to `parent`; both (schema, table) in lower case."""

    name: str
    child: tuple[str, str]
    parent: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """The server's metadata of one schema; names in lower case. `kinds`: table → TABLE_TYPE."""

    schema: str
    kinds: Mapping[str, str]
    triggered: frozenset[str]
    checked: frozenset[str]
    foreign_keys: tuple[ForeignKey, ...]

    def own_keys(self, table: str) -> tuple[str, ...]:
        """Return the names of the table's foreign keys."""
        child = (self.schema.lower(), table.lower())
        return tuple(key.name for key in self.foreign_keys if key.child == child)

    def stays(self, table: str, *, with_schema: bool = False) -> str:
        """Return why a table cannot be moved, '' if it can. `with_schema`: the complete schema is dropped."""
        name = table.lower()
        kind = self.kinds.get(name)
        if kind is None:
            return "it is not there"
        if kind not in ("BASE TABLE", "SEQUENCE"):
            return f"it is a {kind}"
        if name in self.triggered:
            return "it has triggers"
        qualified_name = (self.schema.lower(), name)
        for key in self.foreign_keys:
            inside = key.child == qualified_name or (with_schema and key.child[0] == qualified_name[0])
            if key.parent == qualified_name and not inside:
                return f"the foreign key {key.name} of {'.'.join(key.child)} refers to it"
        return ""

    def no_twin(self, table: str) -> str:
        """Why CREATE TABLE … LIKE would not create an identical table, '' when it would."""
        qualified_name = (self.schema.lower(), table.lower())
        if any(qualified_name in (key.child, key.parent) for key in self.foreign_keys):
            return "it has to do with foreign keys"
        return "it has CHECK constraints, which get new names" if table.lower() in self.checked else ""


def facts(session: ServerSession, schema: str, tables: Iterable[str]) -> Facts:
    """Ask the server about these tables."""
    where = session.literal(schema)
    names = b",".join(session.literal(table) for table in tables)
    kinds = session.query(
        b"SELECT LOWER(TABLE_NAME), TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s"
        b" AND TABLE_NAME IN (%s)" % (where, names)
    )
    triggers = session.query(
        b"SELECT DISTINCT LOWER(EVENT_OBJECT_TABLE) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA=" + where
    )
    checks: list[tuple[object, ...]] = []
    if session.flavour != "mariadb":  # there they keep their names
        checks += session.query(
            b"SELECT LOWER(TABLE_NAME) FROM information_schema.TABLE_CONSTRAINTS WHERE CONSTRAINT_TYPE='CHECK'"
            b" AND TABLE_SCHEMA=" + where
        )
    return Facts(
        schema,
        {str(name): str(kind) for name, kind in kinds},
        frozenset(str(row[0]) for row in triggers),
        frozenset(str(row[0]) for row in checks),
        tuple(_foreign_keys(session, schema)),
    )


def _foreign_keys(session: ServerSession, schema: str) -> Iterable[ForeignKey]:
    if not _may_have_keys(session, schema):
        return
    where = session.literal(schema)
    rows = session.query(
        b"SELECT CONSTRAINT_NAME, LOWER(CONSTRAINT_SCHEMA), LOWER(TABLE_NAME), LOWER(UNIQUE_CONSTRAINT_SCHEMA),"
        b" LOWER(REFERENCED_TABLE_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS"
        b" WHERE CONSTRAINT_SCHEMA=%s OR UNIQUE_CONSTRAINT_SCHEMA=%s" % (where, where)
    )
    for name, child_schema, child, parent_schema, parent in rows:
        yield ForeignKey(str(name), (str(child_schema), str(child)), (str(parent_schema), str(parent)))


def _may_have_keys(session: ServerSession, schema: str) -> bool:
    """InnoDB's own list is fast; the standard view opens every table of the server."""
    source = b"INNODB_SYS_FOREIGN" if session.flavour == "mariadb" else b"INNODB_FOREIGN"
    path = b"LOWER(CONVERT(CONCAT(CAST(CONVERT(%s USING filename) AS BINARY),'/') USING utf8mb4))"
    path = path % session.literal(schema)
    try:
        found = session.query(
            b"SELECT 1 FROM information_schema.%s WHERE INSTR(LOWER(FOR_NAME),%s)=1 OR INSTR(LOWER(REF_NAME),%s)=1"
            b" LIMIT 1" % (source, path, path)
        )
    except ServerError as error:
        if error.code not in _NOT_TOLD:
            raise
        return True
    return bool(found)
