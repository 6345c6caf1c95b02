"""Which metrics Prometheus' rules and Grafana's dashboard ask for."""

from __future__ import annotations

import json
import re

import yaml

from tests.support.servers import ROOT

# Prometheus' own of every target.
OF_PROMETHEUS = {"up"}


def asked_for(query: str) -> set[str]:
    """Names of metrics in a PromQL text."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", query)
    return set(re.findall(r"\b(?:binlog|process)_\w+|\bup\b", bare))


def all_asked_for() -> set[str]:
    """By the alarms and by the dashboard, without Prometheus' own."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    board = json.loads((ROOT / "deploy/grafana/dashboards/tidb-binlog.json").read_text())
    queries = [rule["expr"] for group in groups for rule in group["rules"]]
    queries += [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return {name for query in queries for name in asked_for(query)} - OF_PROMETHEUS
