"""As much of Kubernetes' API as Spark asks for, with pods that are processes of this machine.

What is created must fit the API's schemas, and a pod what the namespace's `restricted` asks. A pod's program runs with
the environment of its container; folders of its volumes are folders of the test.
"""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate  # type: ignore[import-untyped]

from tests.support.servers import Server

VERSION = "1.33"
POD_IP = "127.0.0.1"
KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "persistentvolumeclaims": "PersistentVolumeClaim"}
# Paths in a container that are folders of the test.
OF_MOUNTS = ("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS")
END: dict[str, Any] = {}


def not_restricted(pod: dict[str, Any]) -> list[str]:
    """What Pod Security's profile `restricted` would refuse of a pod."""
    spec = pod["spec"]
    of_pod = spec.get("securityContext", {})
    wrong = []
    if of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        wrong.append("seccompProfile")
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        own = container.get("securityContext", {})
        if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            wrong.append("runAsNonRoot")
        if own.get("allowPrivilegeEscalation", True):
            wrong.append("allowPrivilegeEscalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            wrong.append("capabilities")
    kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
    return wrong + sorted(kinds - {"configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"})


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Of the selectors of a list: a=b, a!=b, a; comma-separated."""
    for part in filter(None, selector.split(",")):
        name, sign, value = re.fullmatch(r"([\w./-]+)(!=|==?|)(.*)", part).groups()  # type: ignore[union-attr]
        if (labels.get(name) == value) == (sign == "!=") if sign else name not in labels:
            return False
    return True


@dataclass
class Api:
    """`made`: every pod as it was asked for. `refused`: why an object was not created."""

    directory: Path
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    servers: dict[str, Server] = field(default_factory=dict)
    watchers: list[queue.Queue[dict[str, Any]]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0

    def __enter__(self) -> Api:
        api = self

        class Handler(_Handler):
            of = api

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for watcher in self.watchers:
            watcher.put(END)
        self._http.shutdown()
        self._http.server_close()
        for server in self.servers.values():
            server.kill()

    def create(self, plural: str, item: dict[str, Any], *, run: bool = True) -> dict[str, Any]:
        with self.lock:
            name = item["metadata"].setdefault("name", f"{item['metadata'].get('generateName', '')}{self.version}")
            item["metadata"].update(uid=f"uid-{name}", creationTimestamp="2026-01-01T00:00:00Z")
            if plural == "pods":
                item["status"] = {"phase": "Pending" if run else "Running", "podIP": POD_IP}
                if run:
                    self.made.append(json.loads(json.dumps(item)))
            self._put(plural, name, item, "ADDED")
            if run:
                self._start_what_can()
            return item

    def delete(self, plural: str, name: str) -> dict[str, Any] | None:
        with self.lock:
            item = self.objects.pop((plural, name), None)
            if item is not None:
                self.version += 1
                self._tell(plural, "DELETED", item)
            if name in self.servers:
                self.servers[name].kill()
            return item

    def listed(self, plural: str, selector: str) -> list[dict[str, Any]]:
        with self.lock:
            return [
                item
                for (kind, _), item in self.objects.items()
                if kind == plural and selects(selector, item["metadata"].get("labels", {}))
            ]

    def watch(self) -> queue.Queue[dict[str, Any]]:
        """Events of pods from now on."""
        with self.lock:
            self.watchers.append(queue.Queue())
            return self.watchers[-1]

    def _put(self, plural: str, name: str, item: dict[str, Any], event: str) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.objects[plural, name] = item
        self._tell(plural, event, item)

    def _tell(self, plural: str, event: str, item: dict[str, Any]) -> None:
        for watcher in self.watchers if plural == "pods" else ():
            watcher.put({"type": event, "object": item})

    def _start_what_can(self) -> None:
        """Pods whose ConfigMaps are there; Spark makes the pod first."""
        for (kind, name), item in list(self.objects.items()):
            if kind == "pods" and item["status"]["phase"] == "Pending":
                asked = {volume["configMap"]["name"] for volume in item["spec"]["volumes"] if "configMap" in volume}
                if all(("configmaps", one) in self.objects for one in asked):
                    self._start(name, item)
                    item["status"]["phase"] = "Running"
                    self._put(kind, name, item, "MODIFIED")

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        """The pod's container, as the kubelet starts it."""
        (container,) = pod["spec"]["containers"]
        folders = self._folders(name, pod, container)
        env = {}
        for entry in container["env"]:
            value = entry.get("value", "")
            place = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if place:
                value = {"status.podIP": POD_IP, "metadata.name": name}[place]
            if entry["name"] in OF_MOUNTS:
                value = str(folders[value])
            env[entry["name"]] = value
        words: list[str] = [*container["command"], *container["args"]]
        assert words[0] == "python"
        self.servers[name] = Server([sys.executable, *words[1:]], self.directory / f"{name}.log", env).start()

    def _folders(self, name: str, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Path]:
        """Mount path → folder, with the files of its ConfigMap."""
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        folders = {}
        for mount in container["volumeMounts"]:
            folder = folders[mount["mountPath"]] = self.directory / name / mount["name"]
            folder.mkdir(parents=True)
            source = volumes[mount["name"]].get("configMap")
            if source:
                for file, text in self.objects["configmaps", source["name"]]["data"].items():
                    (folder / file).write_text(text)
        return folders


class _Handler(BaseHTTPRequestHandler):
    of: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _failure(self, status: int, message: str) -> None:
        self._answer(
            status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message}
        )

    def _asked(self) -> tuple[str, str, dict[str, list[str]]]:
        """(plural, name or "", query)"""
        parts = urlsplit(self.path)
        words = parts.path.strip("/").split("/")  # api/v1/namespaces/NS/pods/NAME
        return (words[4] if len(words) > 4 else ""), (words[5] if len(words) > 5 else ""), parse_qs(parts.query)

    def do_GET(self) -> None:
        plural, name, query = self._asked()
        if "watch" in query:
            self._watch()
        elif name:
            found = self.of.objects.get((plural, name))
            self._answer(200, found) if found else self._failure(404, f"{plural} {name} not found")
        else:
            items = self.of.listed(plural, query.get("labelSelector", [""])[0])
            about = {"resourceVersion": str(self.of.version)}
            self._answer(200, {"kind": f"{KINDS[plural]}List", "apiVersion": "v1", "metadata": about, "items": items})

    def do_POST(self) -> None:
        item = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        plural, _, _ = self._asked()
        try:
            kubernetes_validate.validate(item, VERSION, strict=True)
            wrong = not_restricted(item) if plural == "pods" else []
        except kubernetes_validate.ValidationError as error:
            wrong = [str(error)]
        if wrong:
            self.of.refused.append(f"{plural}: {', '.join(wrong)}")
            self._failure(403, self.of.refused[-1])
        else:
            self._answer(201, self.of.create(plural, item))

    def do_PATCH(self) -> None:
        plural, name, _ = self._asked()
        self.rfile.read(int(self.headers["Content-Length"]))
        found = self.of.objects.get((plural, name))
        self._answer(200, found) if found else self._failure(404, f"{plural} {name} not found")

    def do_DELETE(self) -> None:
        plural, name, query = self._asked()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        names = (
            [name]
            if name
            else [item["metadata"]["name"] for item in self.of.listed(plural, query.get("labelSelector", [""])[0])]
        )
        for one in names:
            self.of.delete(plural, one)
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _watch(self) -> None:
        if self.headers.get("Upgrade"):  # a client then asks again, without WebSocket
            self._failure(503, "no WebSocket here")
            return
        events = self.of.watch()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (event := events.get()) is not END:
            line = json.dumps(event).encode() + b"\n"
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            except OSError:
                return
