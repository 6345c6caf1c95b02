"""Reads of each message only what the planner needs: whether it is a row, a DDL or a resolved event, and its commit_ts.
Rows are decoded by the tasks that apply them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

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

# A row's commit_ts, or an event that is not a row.
Head = int | DdlEvent | ResolvedEvent
# From a message's key and value; raises MessageError.
Heads = Callable[[bytes | None, bytes | None], list[Head]]

_ROWS: Final = ("INSERT", "UPDATE", "DELETE")


def heads_of(options: ProtocolOptions) -> Heads:
    """Return what reads messages with these options. Raises ConfigError if they do not say all that a drainer needs."""
    package = PROTOCOLS.get(options.protocol.lower(), "")
    if package != "open" and package not in _ROW_TS:
        raise ConfigError(
            f"messages of {options.protocol} cannot be a drainer's source: Avro lacks old values and the commit_ts of "
            "deletes, and Debezium has a DECIMAL as a double; let TiCDC write open-protocol, canal-json or simple"
        )
    if not make_encoder(options).resolved(1):
        raise ConfigError(
            f"messages of {options.protocol} as it is set have no resolved events, without which nothing is known to "
            "be complete: add enable-tidb-extension=true"
        )
    decoder = make_decoder(options)
    if isinstance(decoder, OpenDecoder):
        return _open(decoder)
    read = decoder.parse if isinstance(decoder, SimpleDecoder) else _documents(options)
    return _one_event(decoder, read, _ROW_TS[package])


def _open(decoder: OpenDecoder) -> Heads:
    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        found: list[Head] = []
        for its_key, its_value in unframe(key, value):
            head = parse(its_key, "key")
            is_row = head.integer("t") == ROW
            found += [head.integer("ts")] if is_row else _others([decoder.event(its_key, its_value)])
        return found

    return heads


def _documents(options: ProtocolOptions) -> Callable[[bytes | None], Reader]:
    return lambda value: parse(value, f"{options.protocol} message", options.large_message_handle_compression)


def _one_event(
    decoder: Decoder, read: Callable[[bytes | None], Reader], row_ts: Callable[[Reader], int | None]
) -> Heads:
    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        commit_ts = row_ts(read(value))
        return [*_others(decoder.decode(key, value))] if commit_ts is None else [commit_ts]

    return heads


def _canal(message: Reader) -> int | None:
    is_row = message.text("type") in _ROWS and not message.boolean("isDdl")
    return message.needed("_tidb").integer("commitTs") if is_row else None


def _simple(message: Reader) -> int | None:
    return message.integer("commitTs") if message.text("type") in _ROWS else None


_ROW_TS: Final = {"canal": _canal, "simple": _simple}


def _others(events: Iterable[Event | None]) -> Iterator[Head]:
    return (event for event in events if isinstance(event, DdlEvent | ResolvedEvent))
