"""TLS settings with real certificates: who gets in, what is named, and what is read again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from binlog.errors import ConfigError
from binlog.pb import pdpb_pb2
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received
from binlog.rpc.session import Settings
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.fields import SecuritySection
from binlog.runtime.http import StatusServer
from binlog.runtime.listener import Listener
from binlog.runtime.security import Security
from cryptography import x509
from grpc import StatusCode, aio

from tests.support.certificates import Authority, Pair
from tests.support.stub_pd import StubPD


def security(authority: Authority, pair: Pair, *names: str) -> Security:
    return Security(str(authority.ca), str(pair.cert), str(pair.key), names)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class PD:
    """What the tests call of PD, behind our own server."""

    async def members(self, _request: Buffer) -> bytes:
        header = pdpb_pb2.ResponseHeader(cluster_id=9)
        answer: bytes = pdpb_pb2.GetMembersResponse(header=header).SerializeToString()
        return answer

    async def timestamps(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        async for received in requests:
            received.release()
            yield pdpb_pb2.TsoResponse(count=1).SerializeToString()


@asynccontextmanager
async def serving(settings: Security) -> AsyncIterator[str]:
    """A gRPC server behind these settings; its address."""
    pd = PD()
    methods = {b"/pdpb.PD/GetMembers": Method(unary=pd.members), b"/pdpb.PD/Tso": Method(bidi=pd.timestamps)}
    listener = Listener(Settings(methods), settings)
    await listener.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{listener.port}"
    finally:
        await listener.stop(0)


async def call(addr: str, settings: Security | None) -> int:
    channel = open_channel(addr, settings)
    try:
        answer = await stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD").GetMembers(pdpb_pb2.GetMembersRequest(), timeout=60)
        return int(answer.header.cluster_id)
    finally:
        await channel.close()


def test_without_a_ca_there_is_no_tls() -> None:
    """S-01: a certificate alone does not switch it on."""
    off = Security(ssl_cert="/none", ssl_key="/none")
    assert not off.enabled
    off.verify()
    assert off.grpc_channel_credentials() is None
    assert off.ssl_context(server=True) is None


async def test_grpc_call_over_tls_requires_right_ca(authority: Authority, tmp_path: Path) -> None:
    async with serving(security(authority, authority.issue("server"))) as addr:
        assert await call(addr, Security(str(authority.ca))) == 9
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "stranger")
        for wrong in (Security(str(stranger.ca)), None):
            with pytest.raises(aio.AioRpcError) as caught:
                await call(addr, wrong)
            assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_cert_allowed_cn_guards_grpc_calls(authority: Authority) -> None:
    """S-03: with a list, a client needs a certificate whose Common Name is on it."""
    ours = security(authority, authority.issue("server"), " good ", "server")
    async with serving(ours) as addr:
        assert await call(addr, security(authority, authority.issue("good"))) == 9
        with pytest.raises(aio.AioRpcError) as caught:
            await call(addr, security(authority, authority.issue("bad")))
        assert caught.value.code() is StatusCode.UNAUTHENTICATED
        assert "The Common Name from the client certificate bad was not found" in (caught.value.details() or "")
        with pytest.raises(aio.AioRpcError) as caught:
            await call(addr, Security(str(authority.ca)))
        assert caught.value.code() is StatusCode.UNAVAILABLE, "no certificate: refused in the handshake"


async def test_cert_allowed_cn_guards_grpc_streams(authority: Authority) -> None:
    """The refusal does not wait for a request."""
    ours = security(authority, authority.issue("server"), "server")
    async with serving(ours) as addr:
        channel = open_channel(addr, ours)
        stream = stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD").Tso(timeout=60)
        await stream.write(pdpb_pb2.TsoRequest(count=1))
        assert (await stream.read()).count == 1
        stream.cancel()
        await channel.close()
        channel = open_channel(addr, security(authority, authority.issue("bad")))
        stream = stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD").Tso(timeout=60)
        assert await stream.code() is StatusCode.UNAUTHENTICATED
        assert "certificate bad was not found" in await stream.details()
        await channel.close()


def serial_of(port: int, ca: Path) -> int:
    """The serial number of the certificate a server shows now."""
    context = ssl.create_default_context(cafile=str(ca))
    pem = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(ca))
    assert context is not None
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def test_a_renewed_certificate_is_shown_without_a_restart(authority: Authority) -> None:
    """S-02, for gRPC and for HTTP. A half-written pair leaves the old one in use."""
    pair = authority.issue("server")
    settings = security(authority, pair)
    http = StatusServer("127.0.0.1:0", {}, security=settings)
    await http.start()
    async with serving(settings) as addr:
        ports = (int(addr.rpartition(":")[2]), http.port)

        async def shown() -> list[int]:
            return [await asyncio.to_thread(serial_of, port, authority.ca) for port in ports]

        first = await shown()
        authority.issue("server")
        second = await shown()
        assert all(a != b for a, b in zip(first, second, strict=True))
        pair.key.write_text("half")
        assert await shown() == second
        authority.issue("server")
        assert all(a != b for a, b in zip(second, await shown(), strict=True))
    await http.close()


def test_unusable_certificate_files_are_named(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("server")
    junk = tmp_path / "junk"
    junk.write_text("junk")
    other = authority.issue("other")
    for settings, named in [
        (Security("/none/ca.pem"), "ssl-ca /none/ca.pem: .*No such file"),
        (Security(str(junk)), f"ssl-ca {junk}: "),
        (Security(str(authority.ca), str(pair.cert)), "ssl-cert and ssl-key must be set together"),
        (Security(str(authority.ca), "/none/c", "/none/k"), "ssl-cert /none/c, ssl-key /none/k: .*No such file"),
        (Security(str(authority.ca), str(pair.cert), str(junk)), f"ssl-key {junk}: "),
        (Security(str(authority.ca), str(pair.cert), str(other.key)), "(?i)key.values.mismatch"),
    ]:
        with pytest.raises(ConfigError, match=named):
            settings.verify()
    with pytest.raises(ConfigError, match="a server needs ssl-cert and ssl-key"):
        Security(str(authority.ca)).ssl_context(server=True)


def test_security_section_reads_files_and_allowed_names(authority: Authority) -> None:
    pair = authority.issue("server")
    section = SecuritySection.model_validate(
        {"ssl-ca": str(authority.ca), "ssl-cert": str(pair.cert), "ssl-key": str(pair.key), "cert-allowed-cn": "a, b"}
    )
    assert section.security() == security(authority, pair, "a", "b")
    assert not SecuritySection().security().enabled


async def test_url_scheme_decides_about_tls(authority: Authority) -> None:
    """http is plain even where TLS is on; https needs a CA."""
    settings = security(authority, authority.issue("server"))
    plain = await StubPD.start(cluster_id=4)
    assert await call(f"http://{plain.addr}", settings) == 4
    async with serving(settings) as addr:
        assert await call(f"https://{addr}", settings) == 9
    with pytest.raises(ConfigError, match=r"security.ssl-ca is not set"):
        open_channel("https://127.0.0.1:1")
    with pytest.raises(ConfigError, match="URL scheme must be"):
        open_channel("ftp://127.0.0.1:1")
    await plain.close()
