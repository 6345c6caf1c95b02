"""Takes TiDB's own clauses, `/*T![feature] … */`, out of a statement for a server that does not know them. Pure.

To MySQL and MariaDB they are comments; what they leave behind is not always a statement: `ADD COLUMN a INT,
/*T! SHARD_ROW_ID_BITS = 0 */` ends with a comma.
"""

from __future__ import annotations

import re
from typing import Final

_PIECE: Final = re.compile(
    r"""(?P<quoted> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
      | (?P<tidb>   /\*T!.*?\*/ )
      | (?P<other>  /\*.*?\*/ | . )""",
    re.VERBOSE | re.DOTALL,
)


def without_tidb_clauses(sql: str) -> str:
    """The text without them, and without a comma that separated nothing but them."""
    kept = ""
    removed = False  # since the last text that was kept
    for match in _PIECE.finditer(sql):
        text = match.group()
        if match.lastgroup == "tidb":
            removed = True
            kept = kept.rstrip()
        elif removed and text in (";", ",") and kept.endswith(","):
            kept, removed = kept[:-1] + text, False
        elif removed and text == "," and _names_table(kept):
            removed = False
        elif removed and text.isspace():
            continue
        else:
            kept += (" " if removed and kept and text not in ",;)" else "") + text
            removed = False
    return kept.rstrip().rstrip(",") if removed else kept


def _names_table(text: str) -> bool:
    """Whether nothing but ALTER TABLE and a name stands before."""
    return re.fullmatch(r"\s*ALTER\s+TABLE\s+(?:[\w$]+|`(?:[^`]|``)*`|\s*\.\s*)+\s*", text, re.IGNORECASE) is not None
