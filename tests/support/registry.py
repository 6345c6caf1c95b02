"""A real schema registry for tests: Apicurio, by the API that is Confluent's. What it keeps ends with it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.maven_files import folder_of
from tests.support.servers import ROOT, Server, answers, free_port, missing, wait_until

_LISTED = ROOT / "scripts" / "jars" / "apicurio-registry-2.6.13.txt"
_JVM = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
_DEADLINE_S = 240


@dataclass
class SchemaRegistryServer:
    """`url`: of the API, as a client is told it. Compatibility is BACKWARD, as Confluent's is from the start."""

    server: Server
    url: str
    port: int
    directory: Path

    def start(self) -> SchemaRegistryServer:
        self.server.start()
        wait_until(self._answers, deadline_s=_DEADLINE_S, what=f"the registry answers\n{self.server.tail()}")
        self.ask("PUT", "/config", {"compatibility": "BACKWARD"})
        return self

    def _answers(self) -> bool:
        assert self.server.alive, self.server.tail()
        return answers(self.port) and isinstance(self.ask("GET", "/subjects"), list)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer's JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def versions(self, subject: str) -> list[int]:
        found: list[int] = self.ask("GET", f"/subjects/{subject}/versions")
        return found

    def topic(self) -> str:
        """A name that no test has used."""
        return f"t.{uuid.uuid4().hex[:10]}"


def require_registry() -> Path:
    """Its jar."""
    if shutil.which("java") is None:
        missing("Java 17 is not installed (Debian: apt-get install openjdk-17-jre-headless)")
    found = list(folder_of(_LISTED).glob("*-runner.jar"))
    if not found:
        missing("the schema registry is not there: scripts/need.sh registry")
    return found[0]


@contextlib.contextmanager
def running_registry() -> Iterator[SchemaRegistryServer]:
    jar = require_registry()
    directory = Path(tempfile.mkdtemp(prefix="registry-"))
    port = free_port()
    address = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    server = Server(["java", *_JVM, *address, "-jar", str(jar)], directory / "registry.log")
    try:
        yield SchemaRegistryServer(server, f"http://127.0.0.1:{port}/apis/ccompat/v7", port, directory).start()
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
