"""Services of a compose file as processes of this machine, where no container runtime is.

A service's program is what its image's ENTRYPOINT and CMD say in the Dockerfile, or its `command`. Each `name:port` of
a service in a command, in the environment or in a mounted file becomes a free port of 127.0.0.1, `0.0.0.0:port` the
service's own; a mounted path becomes a path below a directory of the test.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.support.dockerfile import environment, stages
from tests.support.servers import ROOT, Server, free_port


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile's target runs."""

    entrypoint: Sequence[str]
    command: Sequence[str]
    env: Mapping[str, str]


def images(dockerfile: Path) -> dict[str, Image]:
    """By target. An instruction of a stage holds for the stages that are built on it."""
    found: dict[str, Image] = {}
    for stage in stages(dockerfile.read_text()).values():
        image = found.get(stage.base, Image((), (), {}))
        for one in stage.instructions:
            if one.word == "ENTRYPOINT":
                image = replace(image, entrypoint=one.array(), command=())
            elif one.word == "CMD":
                image = replace(image, command=one.array())
            elif one.word == "ENV":
                image = replace(image, env={**image.env, **environment(one)})
        found[stage.name] = image
    return found


@dataclass
class Processes:
    """The services of one compose file. `given`: (service, port) that somebody else serves, and where."""

    file: Path
    directory: Path
    given: Mapping[tuple[str, int], int] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    _ports: dict[tuple[str, int], int] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", self._variable, self.file.read_text())
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        self._images = images(ROOT / "deploy/docker/Dockerfile")

    def _variable(self, match: re.Match[str]) -> str:
        return self.variables.get(match[1], match[2] or "")

    def port(self, service: str, port: int) -> int:
        """The port of 127.0.0.1 that stands for a service's."""
        key = (service, port)
        if key not in self._ports:
            self._ports[key] = self.given.get(key) or free_port()
        return self._ports[key]

    def argv(self, name: str) -> list[str]:
        service = self.services[name]
        image = self._images[service["build"]["target"]] if "build" in service else Image((), (), {})
        words = [*image.entrypoint, *service.get("command", image.command)]
        return [self._text(name, str(word)) for word in words]

    def environment(self, name: str) -> dict[str, str]:
        """Paths of the image's own file system are not of this machine."""
        service = self.services[name]
        image = self._images[service["build"]["target"]] if "build" in service else Image((), (), {})
        env = {**image.env, **service.get("environment", {})}
        return {key: self._text(name, str(value)) for key, value in env.items() if not str(value).startswith("/opt/")}

    def start(self, name: str, program: Sequence[str] | None = None) -> Server:
        """`program`: in the place of the first word, which is a program of the image."""
        argv = self.argv(name)
        argv[:1] = program or [str(Path(sys.executable).with_name(argv[0]))]
        env = self.environment(name)
        env.pop("XDG_CACHE_HOME", None)  # the archive of the JVM's classes that all tests share
        env["PATH"] = os.environ["PATH"]
        self.servers[name] = Server(argv, self.directory / f"{name}.log", env).start()
        return self.servers[name]

    def kill(self) -> None:
        for server in self.servers.values():
            server.kill()

    def _text(self, name: str, text: str) -> str:
        """With the addresses and paths of this machine."""
        for mount in self.services[name].get("volumes", []):
            source, target = str(mount).split(":")[:2]
            if target in text:
                text = text.replace(target, str(self._mounted(name, source)))
        return self._addresses(name, text)

    def _mounted(self, name: str, source: str) -> Path:
        """A volume's directory, or a copy of a file with this machine's addresses."""
        if not source.startswith("."):
            place = self.directory / f"{name}-{source}"
            place.mkdir(exist_ok=True)
            return place
        file = (self.file.parent / source).resolve()
        copy = self.directory / f"{name}-{file.name}"
        copy.write_text(self._addresses(name, _host_and_port(file.read_text())))
        return copy

    def _addresses(self, name: str, text: str) -> str:
        hosts = [*self.services, *(host for host, _ in self.given), "0.0.0.0"]
        names = "|".join(map(re.escape, hosts))

        def local(match: re.Match[str]) -> str:
            host = name if match[1] == "0.0.0.0" else match[1]
            return f"127.0.0.1:{self.port(host, int(match[2]))}"

        text = re.sub(rf"(?<![\w.-])({names}):(\d+)\b", local, text)
        return re.sub(r'host = "([\w.]+):(\d+)"', r'host = "\1"\nport = \2', text)


def _host_and_port(text: str) -> str:
    """`host` and `port` of a drainer.toml in one line, as addresses are elsewhere."""
    return re.sub(r'host = "([\w.-]+)"\nport = (\d+)', r'host = "\1:\2"', text)
