"""What a server of the MySQL family can be told, and how it spells it. Values only; who makes them knows the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

# TiDB's default collation of each character set (what a table means that names only the set).
TIDB_DEFAULTS: Final = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
# Where a server lacks a collation: the nearest first.
SUBSTITUTES: Final = {
    "utf8mb4_0900_ai_ci": ("utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_520_nopad_ci", "utf8mb4_unicode_520_ci"),
    "utf8mb4_0900_bin": ("utf8mb4_nopad_bin", "utf8mb4_bin"),
    "gbk_bin": ("gbk_bin",),
    "utf8mb4_bin": ("utf8mb4_bin",),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A server's abilities and words, and the session that runs the statement.

    `collations`: those it knows, in lower case; empty: not asked, every one is taken.
    `expression_indexes`: an index may be on an expression.
    `generated_keys`: a primary key may hold a generated column, and a generated column may be NOT NULL.
    `unenforced_checks`: a CHECK may be NOT ENFORCED.
    `if_exists`: DROP of an index or constraint takes IF EXISTS.
    `validation`: EXCHANGE PARTITION takes WITHOUT VALIDATION.
    `invisible`, `visible`: an index that the optimizer does not use, and one that it does.
    `time_zone`: the session's while the statement runs, '' for UTC.
    `bare`: only what rows depend on is said; foreign keys, CHECKs, indexes on expressions, defaults that are
    expressions and the visibility of indexes are left out.
    """

    collations: frozenset[str] = frozenset()
    expression_indexes: bool = True
    generated_keys: bool = True
    unenforced_checks: bool = True
    if_exists: bool = False
    validation: bool = True
    invisible: str = "INVISIBLE"
    visible: str = "VISIBLE"
    time_zone: str = ""
    bare: bool = False

    def only_rows(self) -> Dialect:
        """The same, `bare`."""
        return replace(self, bare=True)

    def collation(self, name: str) -> str:
        """The collation itself or the nearest one the server has; the server's own error names an unknown one."""
        lowered = name.lower()
        if not self.collations or lowered in self.collations:
            return name
        return next((near for near in SUBSTITUTES.get(lowered, ()) if near in self.collations), name)

    def charset(self, charset: str, collate: str) -> str:
        """`CHARACTER SET … COLLATE …`, '' for bytes."""
        if charset in ("", "binary"):
            return ""
        collate = collate or TIDB_DEFAULTS.get(charset.lower(), "")
        return f"CHARACTER SET {charset}" + (f" COLLATE {self.collation(collate)}" if collate else "")
