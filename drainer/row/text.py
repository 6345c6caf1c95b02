"""The text of a MySQL family row, `(1,'a',NULL)`: templates by which columns are NULL, and the careful way."""

from __future__ import annotations

from collections.abc import Iterable

from drainer.row.form import Cell, Form, mysql_literal

# Rarely are more combinations of NULLs in one table than this; beyond it templates are made anew.
TEMPLATES_MAX = 4096


class Templates(dict[int, tuple[bytes, int]]):
    """NULL mask (bit n: column n) → (format for the cells, how many quotes its result has if no value has any).

    A NULL column's cell is `b""` and prints nothing. If the count of quotes is right, there is no backslash and all is
    UTF-8, then no value needs escaping: three C loops over the whole row instead of several per column.
    """

    __slots__ = ("forms", "needs_check")

    def __init__(self, forms: tuple[Form, ...]) -> None:
        super().__init__()
        self.forms = forms
        self.needs_check = any(form.needs_escape for form in forms)

    def __missing__(self, mask: int) -> tuple[bytes, int]:
        parts = [b"NULL%.0b" if mask >> n & 1 else form.placeholder for n, form in enumerate(self.forms)]
        quotes = sum(form.quotes for n, form in enumerate(self.forms) if not mask >> n & 1)
        if len(self) >= TEMPLATES_MAX:
            self.clear()
        found = self[mask] = (b"(" + b",".join(parts) + b")", quotes)
        return found

    def careful(self, cells: tuple[Cell, ...], mask: int) -> bytes:
        """The row with every value escaped."""
        shown = (None if mask >> n & 1 else cell for n, cell in enumerate(cells))
        return row_text(self.forms, shown)


def row_text(forms: tuple[Form, ...], cells: Iterable[Cell]) -> bytes:
    """A VALUES tuple of cells, None for NULL."""
    pairs = zip(forms, cells, strict=True)
    return b"(" + b",".join([mysql_literal(form.family, cell) for form, cell in pairs]) + b")"
