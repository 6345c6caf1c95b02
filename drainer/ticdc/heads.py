"""Reads of each message only what the planner needs: whether it is a row, a DDL or a resolved event, its commit_ts, and
a row's table. Rows are decoded by the tasks that apply them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from binlog.errors import ConfigError

from drainer.protocol.encoder import Decoder
from drainer.protocol.event import DdlEvent, Event, ResolvedEvent
from drainer.protocol.json_read import Reader, parse
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import ROW
from drainer.protocol.open.framing import unframe
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS, make_decoder, make_encoder
from drainer.protocol.simple.decoder import SimpleDecoder


class RowHead(NamedTuple):
    commit_ts: int
    schema: str
    table: str


Head = RowHead | DdlEvent | ResolvedEvent
# From a message's key and value; raises MessageError.
Heads = Callable[[bytes | None, bytes | None], list[Head]]

_ROWS: Final = ("INSERT", "UPDATE", "DELETE")


def heads_of(options: ProtocolOptions) -> Heads:
    """Return what reads messages with these options. Raises ConfigError if they do not say all that a drainer needs."""
    package = PROTOCOLS.get(options.protocol.lower(), "")
    if package != "open" and package not in _ROW_HEADS:
        raise ConfigError(
            f"messages of {options.protocol} cannot be a drainer's source: Avro lacks old values and the commit_ts of "
            "deletes, and Debezium has a DECIMAL as a double; let TiCDC write open-protocol, canal-json or simple"
        )
    if package == "open" and not options.output_old_value:
        raise ConfigError("messages of open-protocol need output-old-value=true: without it, updates look like inserts")
    if not make_encoder(options).resolved(1):
        raise ConfigError(
            f"messages of {options.protocol} as it is set have no resolved events, without which nothing is known to "
            "be complete: add enable-tidb-extension=true"
        )
    decoder = make_decoder(options)
    if isinstance(decoder, OpenDecoder):
        return _open(decoder)
    read = decoder.parse if isinstance(decoder, SimpleDecoder) else _documents(options)
    return _one_event(decoder, read, _ROW_HEADS[package])


def _open(decoder: OpenDecoder) -> Heads:
    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        found: list[Head] = []
        for its_key, its_value in unframe(key, value):
            head = parse(its_key, "key")
            if head.integer("t") == ROW:
                found.append(RowHead(head.integer("ts"), head.text("scm", ""), head.text("tbl", "")))
            else:
                found += _others([decoder.event(its_key, its_value)])
        return found

    return heads


def _documents(options: ProtocolOptions) -> Callable[[bytes | None], Reader]:
    return lambda value: parse(value, f"{options.protocol} message", options.large_message_handle_compression)


def _one_event(
    decoder: Decoder, read: Callable[[bytes | None], Reader], row_head: Callable[[Reader], RowHead | None]
) -> Heads:
    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        found = row_head(read(value))
        return [*_others(decoder.decode(key, value))] if found is None else [found]

    return heads


def _canal(message: Reader) -> RowHead | None:
    if message.text("type") not in _ROWS or message.boolean("isDdl"):
        return None
    return RowHead(message.needed("_tidb").integer("commitTs"), message.text("database"), message.text("table"))


def _simple(message: Reader) -> RowHead | None:
    if message.text("type") not in _ROWS:
        return None
    return RowHead(message.integer("commitTs"), message.text("database"), message.text("table"))


_ROW_HEADS: Final = {"canal": _canal, "simple": _simple}


def _others(events: Iterable[Event | None]) -> Iterator[Head]:
    return (event for event in events if isinstance(event, DdlEvent | ResolvedEvent))
