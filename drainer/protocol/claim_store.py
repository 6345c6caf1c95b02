"""Where messages lie that are too large for Kafka (claim check): a directory, or an object store that Arrow knows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from binlog.errors import BinlogError

from drainer.protocol.errors import ProtocolConfigError

_S3_SECRETS: Final = ("access-key", "secret-access-key")


class ClaimStoreError(BinlogError):
    """A claim that cannot be written or read; the text names it and says why."""


class ClaimStore(Protocol):
    """A store of objects by name. An object that exists is complete; writing it again writes the same bytes."""

    def location(self, name: str) -> str:
        """As messages have it: the store's address, without secrets, and the name."""
        ...

    def put(self, name: str, data: bytes) -> str:
        """Gives the location, when the object is durable. Raises ClaimStoreError."""
        ...

    def get(self, name: str) -> bytes:
        """Raises ClaimStoreError."""
        ...

    def check(self) -> None:
        """Write an object, so that a place that takes none is known before a row needs it. Raises ClaimStoreError."""
        ...


# What a check leaves in an object store: it may be written there, and who may write may not be allowed to delete.
_TRIED: Final = "drainer-may-write"


class DirectoryStore:
    """A directory of this machine, or one that it mounts. It is made when something is put into it."""

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address

    def location(self, name: str) -> str:
        return f"{self._address}/{name}"

    def put(self, name: str, data: bytes) -> str:
        unfinished = self._path / f".{name}.{os.getpid()}"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path / name)
            _sync_directory(self._path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be written: {error.strerror}") from None
        return self.location(name)

    def get(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except OSError as error:
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be read: {error.strerror}") from None

    def check(self) -> None:
        unfinished = self._path / f".{_TRIED}.{os.getpid()}"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(b"-")
            unfinished.unlink()
        except OSError as error:
            raise _not_writable(self._address, str(error.strerror)) from None


def _not_writable(address: str, why: str) -> ClaimStoreError:
    return ClaimStoreError(f"claim-check-storage-uri {address}: claims cannot be written there: {why}")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArrowStore:
    """A file system of pyarrow.fs whose files appear when they are closed, as those of object stores do. `base`: the
    folder in it."""

    def __init__(self, files: Any, base: str, address: str) -> None:
        self._files = files
        self._base = base.rstrip("/")
        self._address = address

    def location(self, name: str) -> str:
        return f"{self._address}/{name}"

    def put(self, name: str, data: bytes) -> str:
        try:
            with self._files.open_output_stream(f"{self._base}/{name}") as file:
                file.write(data)
        except OSError as error:
            raise ClaimStoreError(f"the claim {self.location(name)} cannot be written: {error}") from None
        return self.location(name)

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
    """`file:///dir`, a path, or `s3://bucket/prefix?region=…&endpoint=…&access-key=…&secret-access-key=…`: TiCDC's
    parameters, or Arrow's. Without a region Arrow asks Amazon for the bucket's; else nothing is connected to yet.

    Raises ProtocolConfigError; what is secret is not in its text."""
    parts = urlsplit(uri)
    if parts.scheme in _LOCAL_SCHEMES:
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise ProtocolConfigError(f"claim-check-storage-uri {uri!r} is no absolute path")
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
    """An S3 address with TiCDC's parameters as Arrow understands it; others as they are."""
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
    given.pop("force-path-style", None)  # Arrow does so for every endpoint that is not Amazon's
    return parts._replace(netloc=user + host, query=urlencode(given)).geturl()
