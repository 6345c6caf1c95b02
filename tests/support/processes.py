"""The processes of this machine as /proc shows them. Any of them, and any thread, may end while this looks."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`, without `pid` itself.

    The parent is read from each process's own line: it names a process, and not the thread that started it, whose list
    of children may lack some while others end. A process between vfork and exec is among them, with the memory and the
    command line of its parent.
    """
    started: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                after_the_name = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            started.setdefault(int(after_the_name[1]), []).append(int(place.name))
    found: list[int] = []
    unseen = [pid]
    while unseen:
        children = started.get(unseen.pop(), [])
        found += children
        unseen += children
    return found
