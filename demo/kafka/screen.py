"""The Kafka demo's output: topics with their counts and rates, and the newest event of each protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from demo.compare import Comparison
from demo.kafka.events import EventsSeen
from demo.screen import Moment, Screen, lag_told, pumps_told


@dataclass(frozen=True, slots=True)
class FeedMoment:
    """The state of a changefeed at one moment. `lag_s`: its drainer's lag, None while it is unknown."""

    name: str
    title: str
    lag_s: float | None
    seen: EventsSeen


class KafkaScreen(Screen):
    """A live picture on a terminal. Without a terminal, a few lines every few seconds."""

    def show_feeds(self, moment: Moment, feeds: Sequence[FeedMoment]) -> None:
        if not self.is_live:
            if self.is_due(moment.elapsed_s):
                self.say(
                    f"{moment.elapsed_s:4.0f} s  {moment.phase}: {moment.transactions:,} transactions, "
                    f"{moment.rows_committed:,} rows committed, {pumps_told(moment)}"
                )
                for feed in feeds:
                    self.say(f"        {feed_told(feed)}")
                    if feed.seen.newest:
                        self.say(f"          newest: {escape(_short(feed.seen.newest, 200))}")
            return
        grid = Table.grid(padding=(0, 3))
        grid.add_row("written", f"{moment.transactions:,} transactions, {moment.rows_committed:,} rows")
        grid.add_row("pumps", pumps_told(moment))
        parts = [part for feed in feeds for part in self._feed(feed)]
        self.draw(moment, Group(grid, *parts))

    def _feed(self, feed: FeedMoment) -> list[Table | Text]:
        title = Text(f"\n{feed.title}, lag {lag_told(feed.lag_s)}", style="bold")
        table = Table()
        for name in ("topic", "partitions", "row events", "a second", "DDLs"):
            table.add_column(name, justify="left" if name == "topic" else "right")
        for name, topic in sorted(feed.seen.topics.items()):
            counts = str(len(topic.partitions)), f"{topic.rows:,}", f"{topic.rate:,.0f}", f"{len(topic.ddls):,}"
            table.add_row(name, *counts)
        return [title, table, Text(_short(feed.seen.newest, 2 * self.width), style="cyan")]

    def checked(self, feed: FeedMoment, text: str, *, ok: bool) -> None:
        """Print the result of a changefeed and of the check of its order."""
        self.say(f"[bold]{feed.title}[/]")
        self.say(f"  row events: {topics_told(feed.seen)}")
        self.say(f"  all events as JSON: {feed.seen.path}")
        colour = "green" if ok else "bold red"
        for line in text.splitlines():
            self.say(f"  order: [{colour}]{escape(line)}[/]" if line else "")

    def compare_feed(self, title: str, results: list[Comparison], database: Path) -> None:
        title = f"tables made from {title}, against what the shop wrote"
        self.compare(results, f"SQLite file: {database}", title=title)


def feed_told(feed: FeedMoment) -> str:
    topics = feed.seen.topics.values()
    rows, rate = sum(topic.rows for topic in topics), sum(topic.rate for topic in topics)
    return (
        f"{feed.name}: {rows:,} row events in {len(topics)} topic{'s' * (len(topics) != 1)}, {rate:,.0f} a second, "
        f"lag {lag_told(feed.lag_s)}"
    )


def topics_told(seen: EventsSeen) -> str:
    """Format every topic with its rows, and with the DDLs that were written to each of its partitions."""
    return ", ".join(f"{name} {topic.rows:,}" for name, topic in sorted(seen.topics.items())) or "nothing"


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
