"""An S3 over HTTP: moto's server, in threads of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3  # type: ignore[import-untyped]
from moto.server import ThreadedMotoServer


@dataclass
class ObjectStore:
    """One bucket of it."""

    address: str
    bucket: str

    def uri(self, prefix: str) -> str:
        """TiCDC's address of a place in it, with the keys that it takes."""
        return (
            f"s3://{self.bucket}/{prefix}?endpoint=http%3A%2F%2F{self.address}&region=us-east-1"
            f"&access-key=test&secret-access-key=test&force-path-style=true"
        )

    def names(self, prefix: str = "") -> list[str]:
        """The first thousand."""
        found = _client(self.address).list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", ())]

    def remove(self, name: str) -> None:
        _client(self.address).delete_object(Bucket=self.bucket, Key=name)


@contextlib.contextmanager
def running_s3(bucket: str) -> Iterator[ObjectStore]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"{host}:{port}", bucket)
        _client(store.address).create_bucket(Bucket=bucket)
        yield store
    finally:
        server.stop()


def _client(address: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1", **keys)
