"""Foreign keys in a statement are those that upstream has, under upstream's names. Pure.

TiDB names a constraint fk_1, MariaDB t_ibfk_1, and a DROP FOREIGN KEY would miss it. A name made up by TiDB is another
table's too, but a server knows a name once in a database: it gets the table's id behind it. A REFERENCES in a column's
definition is nothing to TiDB and a constraint to MariaDB, which then refuses to drop the column.
"""

from __future__ import annotations

from collections.abc import Sequence

from drainer.ddl.lexer import quoted
from drainer.sink.mysql.placed import Edit, Placed, element

# Names of the columns in lower case, name of the constraint.
ForeignKeys = Sequence[tuple[tuple[str, ...], str]]


def edits(placed: Sequence[Placed], keys: ForeignKeys, table_id: int, *, if_exists: bool) -> list[Edit]:
    """Names for unnamed constraints; references of columns taken out. `if_exists`: the server may be told to drop what
    may not be there, so a key is dropped under both names."""
    if not placed or not placed[0].is_word("CREATE", "ALTER") or not any(p.is_word("TABLE") for p in placed[1:4]):
        return []
    found: list[Edit] = []
    for at, here in enumerate(placed[:-1]):
        if here.is_word("FOREIGN") and placed[at + 1].is_word("KEY"):
            found += _named(placed, at, keys, table_id)
            found += _dropped(placed, at, table_id) if if_exists else []
        if here.is_word("REFERENCES") and not _belongs(placed, at):
            found.append(Edit(here.token.start, placed[_end(placed, at)].token.end, ""))
    return found


def _dropped(placed: Sequence[Placed], at: int, table_id: int) -> list[Edit]:
    if at + 2 >= len(placed) or not placed[at - 1].is_word("DROP") or placed[at + 2].is_word("IF"):
        return []
    token = placed[at + 2].token
    drop = " DROP FOREIGN KEY IF EXISTS "
    both = f"{drop.strip()} {quoted(token.value)},{drop}{quoted(f'{token.value}_{table_id}')}"
    return [Edit(placed[at - 1].token.start, token.end, both)]


def _named(placed: Sequence[Placed], at: int, keys: ForeignKeys, table_id: int) -> list[Edit]:
    bare = placed[at - 1].is_word("CONSTRAINT")
    if placed[at - 1].is_word("DROP") or (not bare and placed[at - 2].is_word("CONSTRAINT")):
        return []
    opening = next((i for i in range(at, len(placed)) if placed[i].is_mark("(")), None)
    if opening is None:
        return []
    inside = []
    for one in placed[opening + 1 :]:
        if one.depth <= placed[opening].depth:
            break
        inside.append(one.token.value.lower())
    columns = tuple(name for name in inside if name != ",")
    name = next((name for of, name in keys if of == columns), "")
    start = placed[at].token.start
    return [Edit(start, start, ("" if bare else "CONSTRAINT ") + quoted(f"{name}_{table_id}") + " ")] if name else []


def _belongs(placed: Sequence[Placed], at: int) -> bool:
    """Whether the REFERENCES at `at` is a FOREIGN KEY's."""
    return any(placed[i].is_word("FOREIGN") and placed[i].depth == placed[at].depth for i in element(placed, at))


def _end(placed: Sequence[Placed], at: int) -> int:
    """The last token of REFERENCES table [(columns)] [MATCH …] [ON …]."""
    end = at + 1
    while end + 2 < len(placed) and placed[end + 1].is_mark("."):
        end += 2
    depth = placed[at].depth
    if end + 1 < len(placed) and placed[end + 1].is_mark("("):
        end = next(i for i in range(end + 2, len(placed)) if placed[i].is_mark(")") and placed[i].depth == depth)
    if end + 1 < len(placed) and placed[end + 1].is_word("MATCH"):
        end += 2
    while end + 3 < len(placed) and placed[end + 1].is_word("ON") and placed[end + 2].is_word("DELETE", "UPDATE"):
        end += 4 if placed[end + 3].is_word("SET", "NO") else 3
    return end
