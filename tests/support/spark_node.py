"""Becomes a program that sees no more than a machine of a Spark cluster would.

    unshare --mount --uts python spark_node.py FILE

FILE is JSON: `name` of the machine; `hide`: folders that become empty; `show`: folders that stay to be seen in them,
read-only; `work`: a folder that is seen at `home`, which is also the current folder; `hosts`: what becomes
/etc/hosts; `command` and `env` of the program that this process becomes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from pathlib import Path

READ_ONLY, REMOUNT, BIND = 1, 32, 4096


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); the command would look up where a descriptor's path leads, which is hidden by then."""
    call = ctypes.CDLL(None, use_errno=True).mount
    if call(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def main(path: str) -> None:
    spec = json.loads(Path(path).read_bytes())
    socket.sethostname(spec["name"])
    # What is to be seen is held open: below a hidden folder it has no path any more.
    seen = [(Path(place), Path(place)) for place in spec["show"]]
    seen += [(Path(spec["work"]), Path(spec["home"])), (Path(spec["hosts"]), Path("/etc/hosts"))]
    held = [(os.open(source, os.O_PATH), source.is_dir(), target) for source, target in seen]
    for folder in spec["hide"]:
        if Path(folder).is_dir():
            mount("tmpfs", folder, "tmpfs", options="mode=1777")
    for descriptor, is_folder, target in held:
        if not target.exists():
            (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
            if not is_folder:
                target.touch()
        mount(f"/proc/self/fd/{descriptor}", str(target), flags=BIND)
        if str(target) in spec["show"]:
            with contextlib.suppress(PermissionError):  # some flags of a mount may only be kept by who set them
                mount("", str(target), flags=BIND | REMOUNT | READ_ONLY)
        os.close(descriptor)
    os.chdir(spec["home"])
    os.execve(spec["command"][0], spec["command"], spec["env"])


if __name__ == "__main__":
    main(sys.argv[1])
