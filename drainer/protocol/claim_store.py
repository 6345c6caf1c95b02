"""Stores for messages that are too large for Kafka (claim check): a directory, or an object store supported by
Arrow."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from uuid import uuid4

from binlog.errors import BinlogError
from binlog.runtime.directories import make_directory, sync_directory

from drainer.protocol.errors import ProtocolConfigError

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
    """Stores objects in a directory of this machine or of a mounted file system. The first write creates the
    directory."""

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
