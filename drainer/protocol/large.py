"""Rows whose messages are longer than the topic allows. Depending on the options, the message has the handle key alone,
or a claim check that names the stored message, or MessageTooLarge is raised and names the row. No row is ever left
out.

Claims are stored in a directory, or in an object store supported by Arrow.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from uuid import UUID, uuid4

import numpy as np
from binlog.errors import BinlogError
from binlog.runtime.directories import make_directory, sync_directory

from drainer.protocol.encoder import Decoder, EncodedColumns, Encoder, Message, TableEncoder, concatenated
from drainer.protocol.errors import EncodeError, MessageError, MessageTooLarge, ProtocolConfigError
from drainer.protocol.event import RowEvent
from drainer.protocol.json_read import parse
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import RowChanges

_S3_SECRETS: Final = ("access-key", "secret-access-key")


class ClaimStoreError(BinlogError):
    """A claim cannot be written or read. The text names the claim and the reason."""


class ClaimStore(ABC):
    """Stores objects by name. An object is never visible before it is complete, and is only written again with the
    same bytes. `address`: the store's, without secrets."""

    def __init__(self, address: str) -> None:
        self._address = address

    def location(self, name: str) -> str:
        """Return the location that messages contain."""
        return f"{self._address}/{name}"

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Store an object. It is durable when this returns. Raises ClaimStoreError."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the content of an object. Raises ClaimStoreError."""

    @abstractmethod
    def check(self) -> None:
        """Write a test object, so that a store that cannot be written is reported before a row needs it. Raises
        ClaimStoreError."""


# The test object that a check writes to an object store. It stays there, because the account may be allowed to write
# objects but not to delete them.
_TRIED: Final = "drainer-may-write"


class DirectoryStore(ClaimStore):
    """Stores objects in a directory of this machine or of a mounted file system, which the first write creates."""

    def __init__(self, path: Path, address: str) -> None:
        super().__init__(address)
        self._path = path

    def _unfinished(self, name: str) -> Path:
        """Return a path that no other writer has. A task that was given up may write the same claim on another machine,
        in a process of the same id."""
        return self._path / f".{name}.{uuid4().hex}"

    def put(self, name: str, data: bytes) -> None:
        unfinished = self._unfinished(name)
        try:
            make_directory(self._path)
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path / name)
            sync_directory(self._path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be written: {error.strerror}") from None

    def get(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except OSError as error:
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be read: {error.strerror}") from None

    def check(self) -> None:
        unfinished = self._unfinished(_TRIED)
        try:
            make_directory(self._path)
            unfinished.write_bytes(b"-")
            unfinished.unlink()
        except OSError as error:
            raise _not_writable(self._address, str(error.strerror)) from None


def _not_writable(address: str, why: str) -> ClaimStoreError:
    return ClaimStoreError(f"claim-check-storage-uri {address}: claims cannot be written there: {why}")


class ArrowStore(ClaimStore):
    """Stores objects in a file system of pyarrow.fs whose files become visible when they are closed, as in object
    stores. `base`: the folder in the file system."""

    def __init__(self, files: Any, base: str, address: str) -> None:
        super().__init__(address)
        self._files = files
        self._base = base.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        try:
            with self._files.open_output_stream(f"{self._base}/{name}") as file:
                file.write(data)
        except OSError as error:
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be written: {error}") from None

    def get(self, name: str) -> bytes:
        try:
            with self._files.open_input_stream(f"{self._base}/{name}") as file:
                data: bytes = file.read()
        except OSError as error:
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be read: {error}") from None
        return data

    def check(self) -> None:
        try:
            self.put(_TRIED, b"-")
        except ClaimStoreError as error:
            raise _not_writable(self._address, str(error)) from None


_LOCAL_SCHEMES: Final = frozenset({"", "file"})


def open_store(uri: str) -> ClaimStore:
    """Open a store by its URI: `file:///dir`, a path, or
    `s3://bucket/prefix?region=…&endpoint=…&access-key=…&secret-access-key=…`, with TiCDC's parameters or Arrow's. If an
    S3 URI has no region, Arrow requests the bucket's region from Amazon. Otherwise no connection is opened yet.

    Raises ProtocolConfigError, whose text contains no secrets.
    """
    parts = urlsplit(uri)
    if parts.scheme in _LOCAL_SCHEMES:
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise ProtocolConfigError(f"claim-check-storage-uri {uri!r} is not an absolute path")
        return DirectoryStore(Path(path), f"file://{parts.path.rstrip('/')}")
    host = parts.netloc.rpartition("@")[2]
    address = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    from pyarrow.fs import FileSystem

    try:
        files, base = FileSystem.from_uri(arrow_uri(uri))
    except (ValueError, OSError) as error:
        secret = parts.query or parts.netloc != host
        why = "its parameters are not understood" if secret else str(error)
        raise ProtocolConfigError(f"claim-check-storage-uri {address}: {why}") from None
    return ArrowStore(files, base, address)


def arrow_uri(uri: str) -> str:
    """Convert an S3 URI with TiCDC's parameters to Arrow's. Return any other URI unchanged."""
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme != "s3" or not given.keys() & {"endpoint", "force-path-style", *_S3_SECRETS}:
        return uri
    user, host = "", parts.netloc.rpartition("@")[2]
    key, secret = (given.pop(name, "") for name in _S3_SECRETS)
    if key and secret:
        user = f"{quote(key, safe='')}:{quote(secret, safe='')}@"
    endpoint = urlsplit(given.pop("endpoint", ""))
    if endpoint.netloc:
        given |= {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
    given.pop("force-path-style", None)  # Arrow always does this for endpoints other than Amazon's
    return parts._replace(netloc=user + host, query=urlencode(given)).geturl()


# Bytes that TiCDC reserves below the topic's max.message.bytes, for the header of Kafka's record batch.
TOPIC_RESERVE: Final = 128
# More than the framing of any protocol adds to one row. A row closer to the limit than this is framed to measure it.
_FRAME_MAX: Final = 64


def message_bytes_max(topic_bytes: int) -> int:
    """Return the limit of a message with one row, in bytes, counted as in Message.length. `topic_bytes`: the topic's
    max.message.bytes."""
    return topic_bytes - TOPIC_RESERVE


@dataclass(frozen=True, slots=True)
class LargeMessages:
    """Replaces messages that are too large for a topic. `message_bytes_max`: the topic's limit. `changefeed`: part of
    the names of claims, which stay the same when a row is sent again. `store`: of claims."""

    encoder: Encoder
    options: ProtocolOptions
    message_bytes_max: int
    changefeed: str
    store: ClaimStore | None = None

    def fitted(self, table: TableEncoder, changes: RowChanges, parts: list[EncodedColumns]) -> list[EncodedColumns]:
        """Return `parts`, which `table` encoded from `changes`, with the too large rows replaced. Claims are stored
        when this method returns.

        Raises MessageTooLarge for a row that the configured option cannot make small enough, EncodeError if the table
        of such a row has no handle key, ClaimStoreError if a claim cannot be stored.
        """
        room = self.message_bytes_max - _FRAME_MAX
        if all(int(part.lengths().max(initial=0)) <= room for part in parts):
            return parts
        rows = concatenated(parts)
        wholes = {at: self._single(rows, at) for at in np.flatnonzero(rows.lengths() > room).tolist()}
        large = [at for at, whole in wholes.items() if whole.length > self.message_bytes_max]
        if not large:
            return parts
        option = self.options.large_message_handle_option
        if option == "none":
            raise self._too_large(changes, large[0], wholes[large[0]].length)
        some = changes.take(np.array(large, np.int64))
        if option == "handle-key-only":
            smaller = self._checked(some, table.encode_handle_only(some))
        else:
            smaller = self._claimed(table, some, [wholes[at] for at in large])
        order = np.arange(len(changes))
        order[large] = np.arange(len(changes), len(changes) + len(large))
        return [concatenated([rows, smaller]).take(order)]

    def _claimed(self, table: TableEncoder, some: RowChanges, wholes: Sequence[Message]) -> EncodedColumns:
        if self.store is None:
            raise EncodeError('large-message-handle-option is "claim-check", and there is no store for claims')
        names = [claim_name(self.changefeed, some, at) for at in range(len(some))]
        rows = self._checked(some, table.encode_handle_only(some, [self.store.location(name) for name in names]))
        for name, whole in zip(names, wholes, strict=True):
            raw = self.options.claim_check_raw_value
            self.store.put(name, (whole.value or b"") if raw else _content(whole))
        return rows

    def _checked(self, some: RowChanges, parts: list[EncodedColumns]) -> EncodedColumns:
        rows = concatenated(parts)
        for at in range(len(some)):
            length = self._single(rows, at).length
            if length > self.message_bytes_max:
                raise self._too_large(some, at, length)
        return rows

    def _single(self, rows: EncodedColumns, at: int) -> Message:
        (message,) = self.encoder.frame_columns([rows], np.array([at]))
        return message

    def _too_large(self, changes: RowChanges, at: int, length: int) -> MessageTooLarge:
        table = changes.table
        return MessageTooLarge(
            f"the message of the row {key_text(changes, at)} of `{table.schema}`.`{table.name}` at commit_ts "
            f"{int(changes.commit_ts[at])} has {length:,} bytes, and {self.message_bytes_max:,} are allowed: raise the "
            f"topic's max.message.bytes and max-message-bytes, or choose large-message-handle-option = "
            f'"claim-check" or "handle-key-only"'
        )


def _content(whole: Message) -> bytes:
    """Return the content of a claim in TiCDC's format."""
    parts = {"key": b64encode(whole.key or b"").decode(), "value": b64encode(whole.value or b"").decode()}
    return json.dumps(parts, separators=(",", ":")).encode()


def key_text(changes: RowChanges, at: int) -> str:
    """Return a row's handle key for error texts: `id = 5`."""
    table = changes.table
    found = [f"{table.columns[index].name} = {_shown(changes.image[index][at].as_py())}" for index in table.handle]
    text = ", ".join(found) or "without a key"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _shown(value: object) -> str:
    return repr(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)


def claim_name(changefeed: str, changes: RowChanges, at: int) -> str:
    """Return the name of the claim for one change of one row. A change that is sent again gets the same name, so that
    no attempt leaves an unreferenced file. The format is that of TiCDC's random names: a UUID and `.json`."""
    table = changes.table
    keys = [
        [image[index][at].as_py() for index in table.handle]
        for image in (changes.old, changes.new)
        if image is not None
    ]
    what = (changefeed, table.schema, table.name, table.id, changes.kind.name, int(changes.commit_ts[at]), keys)
    return f"{UUID(bytes=sha256(repr(what).encode('utf-8', 'surrogatepass')).digest()[:16])}.json"


def claimed_row(event: RowEvent, decoder: Decoder, store: ClaimStore, *, raw_value: bool = False) -> RowEvent:
    """Read the complete row of an event with a claim. Only the last part of the claim's location is used, because the
    reader may reach the store at another address. `raw_value`: the writer's claim-check-raw-value. Raises MessageError,
    ClaimStoreError."""
    name = event.claim.rpartition("/")[2]
    if not name.strip(".") or "\0" in name:
        raise MessageError(f"the claim {event.claim!r} of `{event.schema}`.`{event.table}` does not name an object")
    content = store.get(name)
    key, value = (None, content) if raw_value else _parts(name, content)
    found = decoder.decode(key, value)
    if len(found) != 1 or not isinstance(found[0], RowEvent):
        raise MessageError(f"the claim {name} holds {len(found)} events, not one row")
    whole = found[0]
    if (whole.schema, whole.table, whole.commit_ts) != (event.schema, event.table, event.commit_ts):
        raise MessageError(
            f"the claim {name} holds a row of `{whole.schema}`.`{whole.table}` at commit_ts {whole.commit_ts}, and the "
            f"message that names it one of `{event.schema}`.`{event.table}` at {event.commit_ts}"
        )
    return whole._replace(claim=event.claim)


def _parts(name: str, content: bytes) -> tuple[bytes, bytes]:
    claim = parse(content, f"the claim {name}")
    try:
        return b64decode(claim.text("key", ""), validate=True), b64decode(claim.text("value"), validate=True)
    except ValueError as error:
        raise MessageError(f"the claim {name}: key or value is not base64: {error}") from None
