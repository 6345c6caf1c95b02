"""The fold by its rule: one change after another, key by key. What the drainer's fold is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlog import envelope

from drainer.batch.work import Folded, Key, KeyChange, Kind, NetRow, Ordered, SegmentWork, TableShape
from drainer.changes.segment import COLUMNS_ROWS_MIN, SegmentDecoder
from drainer.row.codec import Codec, Decoder, Format, written, written_literals
from drainer.row.fast_path import Cells
from drainer.row.layout import identity
from drainer.row.transaction import LoopbackFilter
from drainer.schema.view import SchemaView
from drainer.sink.mysql.rows.format import SQL_TEXT


@dataclass
class _State:
    """Of one key: its first change, its row now (None: dead), and every image that was read or written."""

    first: Kind
    row: tuple[Codec, Cells, int] | None
    images: list[Key]
    image: Key

    def put(self, image: Key, row: tuple[Codec, Cells, int] | None) -> None:
        self.images.append(image)
        self.image, self.row = image, row

    def net(self, key: object, format_: Format) -> NetRow:
        gone = {image for image in self.images if image != self.image or self.row is None}
        row = None
        if self.row is not None:
            codec, cells, commit_ts = self.row
            (row,) = written(format_, codec, [cells], [commit_ts])
        return NetRow(identity(key), self.first, row, tuple(sorted(gone, key=repr)))


def folded_by_rule(view: SchemaView, payloads: Iterable[bytes], format_: Format) -> SegmentWork:
    """Net rows by (table id, identity), and the changes of tables that stay in order."""
    payloads = list(payloads)
    tables: dict[int, tuple[TableShape, dict[object, _State]]] = {}
    ordered = []
    count = 0
    for codec, kind, old, new, commit_ts, sequence in Decoder(view).rows(payloads):
        count += 1
        if not codec.shape.foldable:
            images = [
                None if cells is None else written_literals(format_, codec, [cells], [commit_ts])[0]
                for cells in (old, new)
            ]
            ordered.append(KeyChange(codec.shape, kind, images[0], images[1], commit_ts, sequence))
            continue
        states = tables.setdefault(codec.shape.table_id, (codec.shape, {}))[1]
        image = format_.key_writer([codec.column_types[at] for at in codec.shape.key])
        stays = old is not None and new is not None and codec.key_of(old) == codec.key_of(new)
        for cells, of in ((old, Kind.DELETE), (new, Kind.UPDATE if stays else Kind.INSERT)):
            if cells is not None:
                shown = image([cells[at] for at in codec.shape.key])
                state = states.setdefault(codec.key_of(cells), _State(kind if stays else of, None, [], shown))
                state.put(shown, None if of is Kind.DELETE else (codec, cells, commit_ts))
    folded = []
    for _, (shape, states) in sorted(tables.items()):
        folded.append(Folded(shape, sorted(state.net(key, format_) for key, state in states.items())))
    seen = [envelope.scan(payload) for payload in payloads]
    sizes = {(one.commit_ts, one.start_ts): len(payload) for one, payload in zip(seen, payloads, strict=True)}
    commits = len({one.commit_ts for one in seen})
    return SegmentWork(0, 1, tuple(folded), Ordered(tuple(ordered)), count, sum(sizes.values()), commits)


def work_of(
    view: SchemaView, payloads: Iterable[bytes], format_: Format = SQL_TEXT, rows_min: int = COLUMNS_ROWS_MIN
) -> SegmentWork:
    """What the fold itself gives."""
    kept = [*LoopbackFilter(view.marks).keep(payloads)]
    return SegmentDecoder(view, format_, columns_rows_min=rows_min).segment(kept, 0, 1)
