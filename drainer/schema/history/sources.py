"""Builds the DDL history sources from the configuration."""

from __future__ import annotations

from pathlib import Path

from binlog.cluster.kv import Etcd
from binlog.cluster.published_jobs import PublishedJobs
from binlog.runtime.security import Security

from drainer.schema.history.base import JobSource
from drainer.schema.history.etcd import PublishedSource
from drainer.schema.history.file import FileSource
from drainer.schema.history.status_port import UrlSource, fetcher


def job_sources(etcd: Etcd, security: Security, *, history_file: str, history_url: str) -> list[JobSource]:
    """The jobs that services publish in etcd; then `history_file` and `history_url`, where they are not empty.

    An https status port is verified with the authority of `security` where that is set, with the system's otherwise.
    """
    sources: list[JobSource] = [PublishedSource(PublishedJobs(etcd))]
    if history_file:
        sources.append(FileSource(Path(history_file)))
    if history_url:
        sources.append(UrlSource(history_url, fetch=fetcher(security.ssl_context(server=False))))
    return sources
