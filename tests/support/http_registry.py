"""Schema registries of few lines, in this process: one that counts and refuses as it is told, one before another."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Registry:
    """Schemas get ids from 1 on, equal ones the same. `script`: answers (status, text) that come first, one for each
    request. `authorization`: what requests must have in the header of this name. `behind`: another registry's URL,
    which gets what is let in. `requests`: (method, path, body, headers) of each."""

    script: deque[tuple[int, str]] = field(default_factory=deque)
    authorization: str = ""
    behind: str = ""
    url: str = ""
    requests: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)
    schemas: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        self.requests.append((method, path, body, headers))
        if self.script:
            return self.script.popleft()
        if self.authorization and headers.get("authorization") != self.authorization:
            return 401, json.dumps({"error_code": 401, "message": "Unauthorized: who are you?"})
        if self.behind:
            return self._forwarded(method, path, body, headers)
        if path == "/":
            return 200, "{}"
        if path == "/schemas/types":
            return 200, '["JSON","AVRO"]'
        if method == "POST":
            schema = json.loads(body)["schema"]
            if schema not in self.schemas:
                self.schemas.append(schema)
            return 200, json.dumps({"id": self.schemas.index(schema) + 1})
        number = int(unquote(path.rpartition("/")[2]))
        if not 0 < number <= len(self.schemas):
            return 404, json.dumps({"error_code": 40403, "message": "Schema not found"})
        return 200, json.dumps({"schema": self.schemas[number - 1]})

    def _forwarded(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        kept = {name: value for name, value in headers.items() if name in ("content-type", "accept")}
        request = urllib.request.Request(self.behind + path, body or None, kept, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextlib.contextmanager
def serving(registry: Registry, *, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """With its `url` set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do()

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, text = registry.answer(self.command, self.path, body, headers)
            data = text.encode()
            self.send_response(status)
            if status in (301, 302, 307, 308):
                self.send_header("Location", text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    registry.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
