"""A pump asked by gRPC for Java, which has an HTTP/2 of its own (Netty's): no client of Python's or Go's shares it."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from binlog.envelope import encode_binlog, scan
from binlog.pb import pump_ext_pb2, pump_pb2
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from scripts.maven_files import entries, folder_of
from tests.integration.pump.test_process import cluster_of, pump
from tests.support.certificates import Authority
from tests.support.jvm import running_jvm
from tests.support.servers import ROOT, Etcd, free_port, missing, wait_until
from tests.unit.pump.build import commit, prewrite

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MIB = 1 << 20
JARS = ROOT / "scripts" / "jars" / "grpc-java-1.85.1.txt"
WAIT_S = 60


class Method:
    """A method of a service, with messages as bytes for us and as dynamic ones for Java."""

    def __init__(self, gateway: JavaGateway, module: Any, name: str, kind: str) -> None:
        service, _, method = name.partition("/")
        found = module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
        self._java = gateway.jvm
        protobuf = self._java.com.google.protobuf
        parsed = protobuf.DescriptorProtos.FileDescriptorProto.parseFrom(bytearray(module.DESCRIPTOR.serialized_pb))
        none = gateway.new_array(protobuf.Descriptors.FileDescriptor, 0)
        file = protobuf.Descriptors.FileDescriptor.buildFrom(parsed, none)
        self._input = file.findMessageTypeByName(found.input_type.name)
        output = file.findMessageTypeByName(found.output_type.name)
        dynamic, marshaller = protobuf.DynamicMessage, self._java.io.grpc.protobuf.ProtoUtils.marshaller
        self._dynamic = dynamic
        self.output = getattr(module, found.output_type.name)
        self.descriptor = (
            self._java.io.grpc.MethodDescriptor.newBuilder()
            .setType(getattr(self._java.io.grpc.MethodDescriptor.MethodType, kind))
            .setFullMethodName(name)
            .setRequestMarshaller(marshaller(dynamic.getDefaultInstance(self._input)))
            .setResponseMarshaller(marshaller(dynamic.getDefaultInstance(output)))
            .build()
        )

    def request(self, message: Any) -> Any:
        return self._dynamic.parseFrom(self._input, bytearray(message.SerializeToString()))

    def answer(self, message: Any) -> Any:
        return self.output.FromString(bytes(message.toByteArray()))


class Client:
    """A pump's services through a channel of Java's."""

    def __init__(self, gateway: JavaGateway, port: int, cluster_id: int, *, ca: Path | None = None) -> None:
        self._java, self._cluster_id = gateway.jvm, cluster_id
        grpc = self._java.io.grpc
        if ca is None:
            credentials = grpc.InsecureChannelCredentials.create()
        else:
            credentials = grpc.TlsChannelCredentials.newBuilder().trustManager(self._java.java.io.File(str(ca))).build()
        builder = grpc.Grpc.newChannelBuilder(f"127.0.0.1:{port}", credentials)
        self._channel = builder.maxInboundMessageSize(1 << 30).build()
        self._calls, self._options = grpc.stub.ClientCalls, grpc.CallOptions.DEFAULT
        self._write = Method(gateway, pump_pb2, "binlog.Pump/WriteBinlog", "UNARY")
        self._pull = Method(gateway, pump_pb2, "binlog.Pump/PullBinlogs", "SERVER_STREAMING")
        self._batch = Method(gateway, pump_ext_pb2, "binlog.ext.PumpExt/WriteBatch", "BIDI_STREAMING")

    def options(self, compressor: str | None = None, timeout_ms: int = WAIT_S * 1000) -> Any:
        found = self._options.withDeadlineAfter(timeout_ms, self._java.java.util.concurrent.TimeUnit.MILLISECONDS)
        return found.withCompression(compressor) if compressor else found

    def write(self, payload: bytes, compressor: str | None = None) -> None:
        request = self._write.request(pump_pb2.WriteBinlogReq(clusterID=self._cluster_id, payload=payload))
        options = self.options(compressor)
        answer = self._calls.blockingUnaryCall(self._channel, self._write.descriptor, options, request)
        assert self._write.answer(answer).errmsg == ""

    def pulling(self, compressor: str | None = None, timeout_ms: int = WAIT_S * 1000) -> Any:
        """A stream that is read with `next_of`."""
        request = self._pull.request(pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos()))
        options = self.options(compressor, timeout_ms)
        return self._calls.blockingV2ServerStreamingCall(self._channel, self._pull.descriptor, options, request)

    def next_of(self, stream: Any) -> bytes:
        payload: bytes = self._pull.answer(stream.read()).entity.payload
        return payload

    def write_batches(self, *batches: list[bytes]) -> list[Any]:
        """One stream for all of them."""
        stream = self._calls.blockingBidiStreamingCall(self._channel, self._batch.descriptor, self.options())
        found = []
        for number, payloads in enumerate(batches):
            request = pump_ext_pb2.WriteBatchReq(cluster_id=self._cluster_id, batch_id=number, payloads=payloads)
            stream.write(self._batch.request(request))
            found.append(self._batch.answer(stream.read()))
        stream.halfClose()
        assert stream.read() is None, "the stream has ended, well"
        return found

    def close(self) -> None:
        self._channel.shutdownNow()
        assert self._channel.awaitTermination(WAIT_S, self._java.java.util.concurrent.TimeUnit.SECONDS)


def fetched(port: int, ca: Path | None) -> bytes:
    context = ssl.create_default_context(cafile=ca) if ca else None
    url = f"{'https' if ca else 'http'}://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, context=context, timeout=WAIT_S) as answer:
        found: bytes = answer.read()
        return found


def status_of(error: Py4JJavaError) -> str:
    return str(error.java_exception.getStatus().getCode().toString())


@pytest.fixture(scope="module")
def gateway(java: None) -> Iterator[JavaGateway]:
    folder = folder_of(JARS)
    found = list(folder.glob("*.jar"))
    if len(found) != len(entries(JARS)):
        missing("gRPC for Java is not there: scripts/need.sh grpc-java")
    with running_jvm(found, heap="512m") as gateway:
        yield gateway


@pytest.mark.parametrize("tls", [False, True])
def test_java_grpc_client_calls_pump_plain_and_over_tls(
    tmp_path: Path, etcd: Etcd, gateway: JavaGateway, tls: bool
) -> None:
    """Calls and streams, plain and compressed (P-RPC-11), small ones and such as need windows; deadlines, and a stream
    that is cancelled. Over TLS it insists on ALPN."""
    port, authority, more = free_port(), Authority(tmp_path), []
    if tls:
        pair = authority.issue("pump")
        more = ["-ssl-ca", str(authority.ca), "-ssl-cert", str(pair.cert), "-ssl-key", str(pair.key)]
    server = pump(tmp_path, etcd, "p1", port, *more).start()
    try:
        server.wait_for_output("pump is serving")
        cluster_id = asyncio.run(cluster_of(etcd))
        client = Client(gateway, port, cluster_id, ca=authority.ca if tls else None)
        try:
            ended = played(client)
            metrics = partial(fetched, port, authority.ca if tls else None)
            pulls = re.compile(rb'binlog_pump_rpc_duration_seconds_count\{label="fail",method="PullBinlogs"\} (\d+)\.0')

            def counted() -> int:
                found = pulls.search(metrics())
                return int(found[1]) if found else 0

            wait_until(
                lambda: counted() >= ended, what="two pulls that were cancelled and one whose time was up have ended"
            )
        finally:
            client.close()
        assert server.stop(deadline_s=240) == 0, server.tail()
    finally:
        server.kill()


def played(client: Client) -> int:
    """The number of pulls that the pump has served and that the client has ended."""
    written = []
    sizes = [(None, 10), ("gzip", 10), (None, 3 * MIB), ("gzip", 3 * MIB), ("gzip", 100_000)]
    for number, (compressor, size) in enumerate(sizes, 1):
        row = b"\x08\x01\x12" + _varint(size) + os.urandom(size // 2) + bytes(size - size // 2)
        client.write(_prewrite(number * 10, row), compressor)
        client.write(commit(number * 10, number * 10 + 5), compressor)
        written.append((number * 10, number * 10 + 5, row))
    answers = client.write_batches([prewrite(101), prewrite(102)], [commit(101, 105), commit(102, 106)])
    assert [list(answer.errors) for answer in answers] == [[], []]
    for compressor in (None, "gzip"):
        stream = client.pulling(compressor)
        for start_ts, commit_ts, row in written:
            payload = client.next_of(stream)
            found = scan(payload)
            assert (found.start_ts, found.commit_ts, row in payload) == (start_ts, commit_ts, True)
        assert [scan(client.next_of(stream)).commit_ts for _ in range(2)] == [105, 106]
        stream.cancel("enough of it", None)
    served, timeout_ms = 0, 1500
    while not served:  # on a slow machine the time may be up before the pump gets the call: then with more of it
        stream = client.pulling(timeout_ms=timeout_ms)
        with pytest.raises(Py4JJavaError) as caught:
            while client.next_of(stream):  # it never ends by itself
                served += 1
        assert status_of(caught.value) == "DEADLINE_EXCEEDED"
        timeout_ms *= 2
    with pytest.raises(Py4JJavaError) as caught:
        client.write(b"\xff\xff\xff no binlog")
    assert status_of(caught.value) == "UNKNOWN", "as the original answers"
    client.write(prewrite(201), "gzip")
    client.write(commit(201, 205))
    return 3


def _prewrite(start_ts: int, row: bytes) -> bytes:
    value = b"\x08\x05\x12" + _varint(len(row)) + row
    return encode_binlog(tp=0, start_ts=start_ts, prewrite_key=b"k", prewrite_value=value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
