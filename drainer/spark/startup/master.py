"""Checks that a Spark master is reachable before a JVM is started, because Spark itself tries for a minute."""

from __future__ import annotations

import socket
import time

from drainer.spark.startup.unavailable import SparkUnavailable

CONNECT_S = 3.0
STANDALONE = "spark://"
KUBERNETES = "k8s://"
KUBERNETES_PORTS = {"https": 443, "http": 80}


def check_master(master: str, *, wait_s: float = CONNECT_S) -> None:
    """Raise SparkUnavailable if no master of the list accepts a connection within `wait_s` seconds in total, or if the
    text is invalid. Only standalone and Kubernetes masters are checked."""
    places = places_of(master)
    until_s = time.monotonic() + wait_s
    refusals = []
    for host, port in places:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, (until_s - time.monotonic()) / len(places))):
                return
        except OSError as error:
            refusals.append(f"{host}:{port}: {error.strerror or error or 'no answer'}")
    if refusals:
        raise SparkUnavailable(
            f"no Spark master answers at {master} (-master or [spark] master): {'; '.join(refusals)}"
        )


def places_of(master: str) -> list[tuple[str, int]]:
    """Return (host, port) of each master; nothing for masters without an address. Raises SparkUnavailable for an
    invalid address.
    """
    if master.startswith(STANDALONE):
        return [_place(master, text) for text in master.removeprefix(STANDALONE).split(",")]
    if master.startswith(KUBERNETES):
        scheme, slashes, rest = master.removeprefix(KUBERNETES).partition("://")
        text = (rest if slashes else scheme).partition("/")[0]
        return [_place(master, text, KUBERNETES_PORTS.get(scheme, 443) if slashes else 443)]
    return []


def _place(master: str, text: str, port: int = 0) -> tuple[str, int]:
    host, colon, number = text.rpartition(":")
    if text.endswith("]") or not colon:  # no port, perhaps after an IPv6 address
        host, number = text, str(port or "")
    if not host or not number.isdigit() or not 0 < int(number) < 1 << 16:
        raise SparkUnavailable(
            f"-master or [spark] master: {master}: {text!r} is not host:port; a list is spark://a:7077,b:7077"
        )
    return host.strip("[]"), int(number)
