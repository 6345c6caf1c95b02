"""A command's connections: the registry, the published jobs and the pumps' extension service; and why etcd cannot be
reached, because gRPC reports the same error for every reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
from binlog.cluster.etcd import Etcd, connect_etcd
from binlog.cluster.registry import Kind, NodeRecord, NodeStatus, Registry, key_of
from binlog.cluster.timestamp import cluster_id
from binlog.cluster.writers import PublishedJobs
from binlog.errors import NodeNotFound
from binlog.pb import pump_ext_pb2 as pb
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.fields import UpstreamSection, parse_loose_urls, split_host_port
from binlog.runtime.security import Security

from pumpclient.ctl.errors import CommandError, Misused, NodeSilent, NotFound, Refused
from pumpclient.ctl.options import Options
from pumpclient.ctl.output import LogOutput, Output
from pumpclient.options import upstream

RPC_TIMEOUT_S = 10.0
SETTLED_AT_ONCE_MAX = 256
_KINDS = {
    grpc.StatusCode.UNAVAILABLE: NodeSilent,
    grpc.StatusCode.DEADLINE_EXCEEDED: NodeSilent,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.ABORTED: Refused,
    grpc.StatusCode.ALREADY_EXISTS: Refused,
}


@dataclass(slots=True)
class CommandSession:
    """One run of binlogctl against one cluster. `out` receives its output."""

    options: Options
    section: UpstreamSection
    etcd: Etcd
    registry: Registry
    security: Security | None
    out: Output = field(default_factory=LogOutput)

    async def cluster_id(self) -> int:
        return await cluster_id(self.etcd, self.section, self.security)

    async def record(self, kind: Kind) -> NodeRecord:
        """Return the record of -node-id. Raises Misused if the flag is missing, NodeNotFound if no such node exists."""
        node_id = self.options.node_id
        if not node_id:
            raise Misused(f"-node-id is required: `binlogctl {kind} -show-offline-nodes` lists them")
        record = await self.registry.get(kind, node_id)
        if record is None:
            raise NodeNotFound(f"key {key_of(kind, node_id)} in etcd not found")
        return record

    async def confirm(self, *, refusal: str, about: str, word: str) -> None:
        """Return if -yes is given or the operator types `word`; raise Refused otherwise.

        `refusal`: the error if there is no terminal to type at. `about`: the text shown before the question.
        """
        if self.options.yes:
            return
        if not sys.stdin.isatty():
            raise Refused(refusal)
        sys.stderr.write(f"{about}This cannot be undone. Type {word} to continue: ")
        sys.stderr.flush()
        typed = await asyncio.to_thread(sys.stdin.readline)
        if typed.strip() != word:
            raise Refused("not confirmed, nothing was done")

    async def inspect(self, host: str, pending_max: int) -> pb.InspectResp:
        """Return the state of a pump. Raises NodeSilent if it does not answer, CommandError if it is a Go pump."""
        return await self._call(host, "Inspect", pending_max=pending_max)  # type: ignore[no-any-return]

    async def inspect_all(
        self, pumps: Sequence[NodeStatus], pending_max: int
    ) -> tuple[list[tuple[NodeStatus, pb.InspectResp]], list[str]]:
        """Return the state of each pump that answers, and the ids of the others, which are reported as problems."""
        answers: list[tuple[NodeStatus, pb.InspectResp]] = []
        silent: list[str] = []
        for status in pumps:
            try:
                answers.append((status, await self.inspect(status.host, pending_max)))
            except CommandError as error:
                self.out.problem(
                    "pump does not answer", node_id=status.node_id, state=status.state.value, error=str(error)
                )
                silent.append(status.node_id)
        return answers, silent

    async def published(self, prewrites: Iterable[pb.PendingPrewrite]) -> dict[int, int]:
        """Return the FinishedTS of each published job, by its id. Nothing is read if no prewrite is that of a DDL."""
        return await PublishedJobs(self.etcd).finished(prewrite.ddl_job_id for prewrite in prewrites)

    async def settle(self, host: str, start_ts: int, commit_ts: int) -> pb.SettleResp:
        return await self._call(host, "Settle", start_ts=start_ts, commit_ts=commit_ts)  # type: ignore[no-any-return]

    async def skip_binlog(self, host: str, commit_ts: int, *, dry_run: bool) -> pb.PassOverResp:
        return await self._call(host, "PassOver", commit_ts=commit_ts, dry_run=dry_run)  # type: ignore[no-any-return]

    async def settle_many(self, host: str, ends: Sequence[tuple[int, int]]) -> list[str]:
        """Settle each (start_ts, commit_ts), many concurrently over one connection. Return "" or the error for each.

        A prewrite that is no longer pending was settled meanwhile; that is not an error.
        """
        cluster = await self.cluster_id()
        slots = asyncio.Semaphore(SETTLED_AT_ONCE_MAX)
        async with open_channel(host, self.security) as channel:
            stub = stub_of(channel, pb.DESCRIPTOR, "PumpExt")

            async def one(start_ts: int, commit_ts: int) -> str:
                async with slots:
                    request = pb.SettleReq(cluster_id=cluster, start_ts=start_ts, commit_ts=commit_ts)
                    try:
                        await stub.Settle(request, timeout=RPC_TIMEOUT_S)
                    except grpc.aio.AioRpcError as error:
                        if error.code() is grpc.StatusCode.NOT_FOUND:
                            return ""
                        return f"{error.code().name}: {error.details()}"
                    return ""

            return list(await asyncio.gather(*(one(*end) for end in ends)))

    async def outcome(self, host: str, start_ts: Sequence[int]) -> Sequence[int]:
        """Return the commit_ts with which the pump serves each transaction, 0 if it serves none."""
        return list((await self._call(host, "Outcome", start_ts=start_ts)).commit_ts)

    async def _call(self, host: str, method: str, **fields: Any) -> Any:
        request = getattr(pb, f"{method}Req")(cluster_id=await self.cluster_id(), **fields)
        async with open_channel(host, self.security) as channel:
            stub = stub_of(channel, pb.DESCRIPTOR, "PumpExt")
            try:
                return await getattr(stub, method)(request, timeout=RPC_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise CommandError(f"{host} is not one of our pumps: it has no {method}") from error
                kind = _KINDS.get(error.code(), CommandError)
                raise kind(f"{method} at {host}: {error.code().name}: {error.details()}") from error


@contextlib.asynccontextmanager
async def open_session(options: Options, out: Output) -> AsyncIterator[CommandSession]:
    """Connect to the cluster. Raises ConfigError or ValueError for invalid settings."""
    security = Security(options.ssl_ca, options.ssl_cert, options.ssl_key) if options.ssl_ca else None
    if security is not None:
        security.verify()
    parse_loose_urls(options.pd_urls)  # its error names the flag; the error of `upstream` would name an argument
    section = upstream(options.pd_urls, tso_source=options.tso_source, pd_addr=options.pd_addr)
    etcd = connect_etcd(section.pd_urls, security)
    try:
        yield CommandSession(options, section, etcd, Registry(etcd), security, out)
    finally:
        await etcd.close()


PROBE_S = 2.0


async def why_unreachable(urls: Sequence[str], security: Security | None) -> str:
    """Try to connect to each URL and return the problems, as `https://h:1 …; https://h:2 …`."""
    found = await asyncio.gather(*(_probe(urlsplit(url).netloc or url, security) for url in urls))
    return "; ".join(f"{url} {why}" for url, why in zip(urls, found, strict=True))


async def _probe(place: str, security: Security | None) -> str:
    """Return the problem at host:port, as far as a TCP connection shows it (with TLS if `security` is given)."""
    host, port = split_host_port(place)
    context = security.ssl_context(server=False, protocols=("h2",)) if security is not None else None
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=host if context is not None else None
            )
    except ssl.SSLCertVerificationError as error:
        return f"has a certificate that -ssl-ca does not verify: {error.verify_message}"
    except ssl.SSLError as error:
        return f"does not speak TLS with us: {error.reason or error}"
    except TimeoutError:
        return "does not answer"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    writer.transport.abort()  # close() would wait for the peer's TLS close_notify
    if context is None:
        return await _silence(host, port)
    needs = "" if security is not None and security.ssl_cert else ": does it need -ssl-cert and -ssl-key?"
    return f"accepts the TLS connection, but not the requests{needs}"


async def _silence(host: str, port: int) -> str:
    """Return why a server that accepts plain connections does not answer: it may wait for a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the handshake
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError:
        return "accepts the connection, but does not answer: it hangs, or is no etcd"
    except OSError:  # SSLError is one: it answers, and not with TLS
        return "accepts the connection, but does not answer as an etcd"
    writer.transport.abort()
    return "accepts the connection, but requires TLS: does it need -ssl-ca?"
