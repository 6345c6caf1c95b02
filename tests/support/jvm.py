"""A JVM with the classes of some jars, which a test calls as if they were Python's."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"


@contextlib.contextmanager
def running_jvm(jars: Sequence[Path], *, heap: str = "128m") -> Iterator[JavaGateway]:
    """Without a compiler: a runtime of Java is enough.

    Exceptions are Py4J's own, also in a process that has had a Spark session: PySpark replaces how they are raised, for
    good, and asks its own JVM what they are.
    """
    (gateway_jar,) = PYSPARK_JARS.glob("py4j-*.jar")
    port, process = launch_gateway(
        jarpath=str(gateway_jar),
        classpath=os.pathsep.join(map(str, jars)),
        die_on_exit=True,
        return_proc=True,
        javaopts=[f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    replaced, java_gateway.get_return_value = java_gateway.get_return_value, protocol.get_return_value
    try:
        yield gateway
    finally:
        java_gateway.get_return_value = replaced
        with contextlib.suppress(Exception):
            gateway.shutdown()
        process.kill()
        process.wait(60)
