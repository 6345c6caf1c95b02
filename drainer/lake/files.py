"""Where a lake is: a directory that all nodes have, or a place in S3 or HDFS, which Arrow and Spark open by their own
clients. No other module opens a lake's files or asks for them, except Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow.parquet as pq
from binlog.errors import ConfigError
from binlog.runtime.directories import make_directory, sync_directory, sync_file, sync_tree

from drainer.protocol.large import arrow_uri
from drainer.sink.document_position import lock
from drainer.sink.errors import DestinationDown, DestinationRefused

_SCHEMES: Final = ("s3", "s3a", "hdfs")
_ROW_GROUP_ROWS: Final = 1 << 17
_HADOOP, _SDK = "3.5.0", "2.35.4"  # of the Hadoop in PySpark, and what its S3A was built with
_SDK_MODULES: Final = ("s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_PACKAGES: Final = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    *(f"software.amazon.awssdk:{name}:{_SDK}" for name in _SDK_MODULES),
)
# Amazon's whole SDK (more than 500 MB), jars that Spark has, and OpenSSL, which S3A uses only if it is told to.
_EXCLUDED: Final = (
    "software.amazon.awssdk:bundle",
    *(f"org.{group}:*" for group in ("wildfly.openssl", "slf4j", "apache.httpcomponents")),
    *(f"{group}:*" for group in ("io.netty", "commons-logging", "commons-codec")),
)


@dataclass(frozen=True, slots=True)
class Remote:
    """A place in S3 or HDFS. `uri`: as Spark names it; `options`: of the lake's URI, as its query."""

    uri: str
    options: str = field(default="", compare=False)

    def __truediv__(self, name: str) -> Remote:
        return replace(self, uri=f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def is_s3(self) -> bool:
        return self.uri.startswith("s3a:")

    @property
    def host(self) -> str:
        """The bucket in S3, or host:port of HDFS."""
        return self.uri.split("/")[2]

    @property
    def inside(self) -> str:
        """Its path, as Arrow wants it: in S3 it begins with the bucket."""
        path = self.uri.partition("://")[2]
        return path if self.is_s3 else path.removeprefix(self.host)


Place = Path | Remote


def place(text: str | Path) -> Place:
    """Return the place of a lake: a path, `hdfs://host/path`, or `s3://bucket/prefix?endpoint=…&region=…`, where the
    environment's are used if these are not given. Raises ConfigError."""
    if "://" not in str(text):
        return Path(text).absolute()
    parts = urlsplit(str(text))
    named = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in _SCHEMES)
        raise ConfigError(f"{named}: a lake is in a directory, or at one of {known}")
    options = dict(parse_qsl(parts.query))
    if "@" in parts.netloc or options.keys() - {"endpoint", "region"}:
        raise ConfigError(f"{named}: it takes `endpoint` and `region`; keys come from the environment")
    if parts.scheme != "hdfs" and not parts.netloc:
        raise ConfigError(f"{named} names no bucket")
    scheme = "hdfs" if parts.scheme == "hdfs" else "s3a"
    return Remote(f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}", urlencode(options | _environment(options)))


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What the environment says of S3, without what is given. Hadoop reads none of these variables."""
    names = {"endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "region": ("AWS_REGION", "AWS_DEFAULT_REGION")}
    found = {name: next(filter(None, map(os.environ.get, of)), None) for name, of in names.items()}
    return {name: value for name, value in found.items() if value and name not in given}


def spark_settings(of: Place) -> dict[str, str]:
    """What Spark needs for a place, without its jars."""
    if isinstance(of, Path) or not of.is_s3:
        return {}
    given = dict(parse_qsl(of.options))
    found = {"fast.upload.buffer": "bytebuffer", "multipart.size": "8M"}  # on disk it needs Hadoop's checksum files
    if "endpoint" in given:
        found |= {"endpoint": given["endpoint"], "path.style.access": "true"}
    if "region" in given:
        found["endpoint.region"] = given["region"]
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}


def packages(of: Place) -> tuple[str, str]:
    """Return Maven coordinates, as in spark.jars.packages and spark.jars.excludes: what Spark must download for a place
    beside Delta, and which dependencies of that it must not."""
    is_s3 = isinstance(of, Remote) and of.is_s3
    return (",".join(_PACKAGES), ",".join(_EXCLUDED)) if is_s3 else ("", "")


@cache
def _store(host: str, options: str, is_s3: bool) -> Any:
    from pyarrow.fs import FileSystem

    uri = arrow_uri(f"s3://{host}?{options}".rstrip("?")) if is_s3 else f"hdfs://{host or 'default'}/"
    return FileSystem.from_uri(uri)[0]


def _store_of(of: Remote) -> Any:
    return _store(of.host, of.options, of.is_s3)


def claim(of: Place) -> int | None:
    """Lock a place and return the lock. Stores have none: for them return None when the store has been reached. Raises
    LockHeld, DestinationRefused, DestinationDown."""
    if isinstance(of, Path):
        return lock(of)
    if _kind(of, of.host if of.is_s3 else "/") == "NotFound":
        raise DestinationRefused(f"{of}: there is no bucket {of.host}; the drainer does not make one")
    return None


def _kind(of: Remote, path: str) -> str:
    """What is there, as Arrow calls it. Raises DestinationDown."""
    try:
        return str(_store_of(of).get_file_info(path).type.name)
    except (OSError, ValueError) as error:
        raise DestinationDown(f"{of}: {error}") from error


def make(of: Place) -> None:
    """Make a directory. Stores make theirs with their files. Raises OSError."""
    if isinstance(of, Path):
        make_directory(of)


def sync(of: Place, since_s: float) -> None:
    """Make files durable that Spark has written since a time, which stores do themselves. Raises OSError."""
    if isinstance(of, Path):
        sync_tree(of, since_s)


def sync_commit(of: Place, version: int) -> None:
    """Make the log's file of a table's commit durable; those of its rows are. Stores do it. Raises OSError."""
    if isinstance(of, Path):
        log = of / "_delta_log"
        sync_file(log / f"{version:020}.json")
        sync_directory(log)
        if version == 0:
            sync_directory(of)


def exists(of: Place) -> bool:
    """Return whether a file or directory is there. Raises DestinationDown."""
    return of.exists() if isinstance(of, Path) else _kind(of, of.inside) != "NotFound"


def write(of: Place, name: str, table: Any) -> int:
    """Write a Parquet file, durably, and return its bytes. Raises DestinationDown."""
    settings: Any = {"compression": "zstd", "row_group_size": _ROW_GROUP_ROWS}
    try:
        if isinstance(of, Remote):
            with _store_of(of).open_output_stream(f"{of.inside}/{name}") as out:
                pq.write_table(table, out, **settings)
                return int(out.tell())
        path = of / name
        pq.write_table(table, path, **settings)
        sync_file(path)
        sync_directory(of)
        return path.stat().st_size
    except OSError as error:
        raise DestinationDown(f"{of}: {error}") from error
