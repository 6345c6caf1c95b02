"""The demo's output: one live table while it runs, the comparison at the end. This module wraps `rich`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.compare import Comparison

LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the running chain at one moment. `lag_s`: None while the drainer's lag is unknown."""

    elapsed_s: float
    total_s: float
    phase: str
    transactions: int
    rows_committed: int
    rows_applied: int
    lag_s: float | None
    pumps: dict[str, bool]


def pumps_told(moment: Moment) -> str:
    return "  ".join(
        f"{name} [green]live[/]" if alive else f"{name} [red]down[/]" for name, alive in moment.pumps.items()
    )


def lag_told(lag_s: float | None) -> str:
    return "-" if lag_s is None else f"{lag_s:.1f} s"


class Screen:
    """A live picture on a terminal. Without a terminal (a log, CI), one line every few seconds."""

    def __init__(self) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._last_line_s = -10.0

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def fail(self, text: str) -> None:
        self._console.print(f"[bold red]demo failed:[/] {escape(text)}")

    @contextmanager
    def running(self, total_s: float) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        self._progress = Progress(TextColumn("{task.description}"), BarColumn(40), TimeElapsedColumn())
        self._progress.add_task("writing", total=total_s)
        with Live(console=self._console, refresh_per_second=4) as live:
            self._live = live
            yield
        self._live = None

    def show(self, moment: Moment) -> None:
        pumps, lag = pumps_told(moment), lag_told(moment.lag_s)
        if not self.is_live:
            if self.is_due(moment.elapsed_s):
                self._console.print(
                    f"{moment.elapsed_s:4.0f} s  {moment.phase}: {moment.transactions} transactions, "
                    f"{moment.rows_committed} rows committed, {moment.rows_applied} applied, lag {lag}, {pumps}",
                    soft_wrap=True,
                )
            return
        grid = Table.grid(padding=(0, 3))
        grid.add_row("transactions", f"{moment.transactions:,}")
        grid.add_row("rows committed", f"{moment.rows_committed:,}")
        grid.add_row("rows applied", f"{moment.rows_applied:,}")
        grid.add_row("lag", lag)
        grid.add_row("pumps", pumps)
        self.draw(moment, grid)

    @property
    def is_live(self) -> bool:
        return self._live is not None

    @property
    def width(self) -> int:
        return self._console.width

    def is_due(self, elapsed_s: float) -> bool:
        """Return whether another line is due, without a terminal."""
        if elapsed_s - self._last_line_s < LINE_EVERY_S:
            return False
        self._last_line_s = elapsed_s
        return True

    def draw(self, moment: Moment, below: RenderableType) -> None:
        """Draw the picture: the progress bar, and the table below it."""
        assert self._live is not None and self._progress is not None, "running() comes first"
        self._progress.update(
            self._progress.task_ids[0], completed=moment.elapsed_s, description=moment.phase, total=moment.total_s
        )
        self._live.update(Group(self._progress, below))

    def compare(
        self, results: list[Comparison], place: str, *, title: str = "downstream against what the shop wrote"
    ) -> None:
        """Print the table of comparisons, examples of differences, and `place`, where the tables are."""
        table = Table(title=title)
        for name in ("table", "rows written", "rows downstream", "equal", ""):
            table.add_column(name, justify="left" if name in ("table", "") else "right")
        for r in results:
            verdict = "[green]equal[/]" if r.ok else f"[bold red]{escape(r.problem) or 'differs'}[/]"
            table.add_row(r.table, f"{r.written:,}", f"{r.found:,}", f"{r.equal:,}", verdict)
        self._console.print(table)
        for r in results:
            for row in r.missing:
                self._console.print(f"{r.table}: written, not downstream: {escape(repr(row))}", highlight=False)
            for row in r.unexpected:
                self._console.print(f"{r.table}: downstream, not written: {escape(repr(row))}", highlight=False)
        self._console.print(place, highlight=False, soft_wrap=True)
