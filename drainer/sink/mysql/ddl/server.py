"""Properties of a server of the MySQL family that DDL depends on. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from drainer.ddl.dialect import Dialect

_MARIADB: Final = Dialect(
    expression_indexes=False,
    generated_keys=False,
    unenforced_checks=False,
    if_exists=True,
    validation=False,
    invisible="IGNORED",
    visible="NOT IGNORED",
)


@dataclass(frozen=True, slots=True)
class Server:
    """`flavour`: mysql, mariadb or tidb. `collations`: those it knows, in lower case. `database_collation`: the
    collation of a table of the job's database that names none, '' if not read."""

    flavour: str
    collations: frozenset[str] = frozenset()
    database_collation: str = ""

    @property
    def is_tidb(self) -> bool:
        return self.flavour == "tidb"

    @property
    def is_mariadb(self) -> bool:
        return self.flavour == "mariadb"

    @property
    def has_sequences(self) -> bool:
        return self.flavour != "mysql"

    def dialect(self, time_zone: str = "") -> Dialect:
        """How statements are written for it. `time_zone`: of the session that runs them, '' for UTC."""
        return replace(_MARIADB if self.is_mariadb else Dialect(), collations=self.collations, time_zone=time_zone)
