"""A Dockerfile, read strictly: what Docker would refuse or warn of is an error here."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

WORDS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "VOLUME",
    "WORKDIR",
}  # fmt: skip
_HEALTH_FLAG = re.compile(r"--(?:interval|timeout|start-period|retries)=\d+s?$")


class DockerfileError(ValueError):
    """The text says the line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    text: str
    line: int

    def array(self) -> list[str]:
        """Of CMD, ENTRYPOINT: the form that needs no shell."""
        try:
            found = json.loads(self.text)
        except ValueError:
            raise DockerfileError(f"line {self.line}: {self.word} is not a JSON array") from None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise DockerfileError(f"line {self.line}: {self.word} is not an array of strings")
        return found


@dataclass(slots=True)
class Stage:
    """`base`: another stage's name, or an image's. `instructions`: its own."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, word: str) -> Instruction | None:
        return next((one for one in reversed(self.instructions) if one.word == word), None)


def stages(text: str) -> dict[str, Stage]:
    """By name, in their order. Raises DockerfileError."""
    found: dict[str, Stage] = {}
    current: Stage | None = None
    for one in _instructions(text):
        if one.word == "FROM":
            parts = one.text.split()
            if len(parts) != 3 or parts[1] != "AS" or parts[2] in found:
                raise DockerfileError(f"line {one.line}: a stage has a base and a name of its own: {one.text}")
            current = found[parts[2]] = Stage(parts[2], parts[0])
        elif current is not None:
            _check(one, list(found))
            current.instructions.append(one)
        elif one.word != "ARG":
            raise DockerfileError(f"line {one.line}: {one.word} before the first FROM")
    return found


def chain(found: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and those that it is built on, the first one first."""
    made = [found[name]]
    while made[0].base in found:
        made.insert(0, found[made[0].base])
    return made


def environment(one: Instruction) -> dict[str, str]:
    """Of ENV; values are not expanded."""
    return dict(part.split("=", 1) for part in shlex.split(one.text))


def health_command(one: Instruction) -> list[str]:
    """Of HEALTHCHECK."""
    flags, _, command = one.text.partition("CMD ")
    if not command or not all(_HEALTH_FLAG.match(flag) for flag in flags.split()):
        raise DockerfileError(f"line {one.line}: HEALTHCHECK {one.text}")
    return Instruction("CMD", command, one.line).array()


def _instructions(text: str) -> Sequence[Instruction]:
    found: list[Instruction] = []
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        if not line.strip():
            raise DockerfileError(f"line {number}: an empty line within an instruction")
        begun = begun if parts else number
        parts.append(line.rstrip("\\").strip())
        if line.endswith("\\"):
            continue
        word, _, rest = " ".join(parts).partition(" ")
        if word not in WORDS or not rest.strip():
            raise DockerfileError(f"line {begun}: {word!r} is no instruction that is used here, or says nothing")
        found.append(Instruction(word, rest.strip(), begun))
        parts = []
    if parts:
        raise DockerfileError(f"line {begun}: the last instruction does not end")
    return found


def _check(one: Instruction, known: Sequence[str]) -> None:
    if one.word in ("CMD", "ENTRYPOINT"):
        one.array()
    elif one.word == "HEALTHCHECK":
        health_command(one)
    elif one.word == "ENV":
        environment(one)
    elif one.word == "EXPOSE" and not all(port.isdigit() for port in one.text.split()):
        raise DockerfileError(f"line {one.line}: EXPOSE {one.text}")
    elif one.word == "COPY":
        source = re.match(r"--from=(\S+) ", one.text)
        if source and source[1] not in known[:-1]:
            raise DockerfileError(f"line {one.line}: there is no stage {source[1]} before this one")
        if len(one.text.split()) < 2 + bool(source):
            raise DockerfileError(f"line {one.line}: COPY {one.text}")
