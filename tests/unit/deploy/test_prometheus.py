"""Alarms and dashboard: each alarm fires and is silent where it must, and every metric asked for is one of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.metric_names import asked_for
from tests.support.servers import ROOT, missing

pytestmark = pytest.mark.slow  # needs a program that `make test` does not install

RULES = ROOT / "deploy/prometheus/rules.yml"
TESTS = ROOT / "deploy/prometheus/rules_test.yml"
DASHBOARD = ROOT / "deploy/grafana/dashboards/tidb-binlog.json"


def promtool() -> str:
    """Of the system, or what scripts/need.sh promtool fetched."""
    fetched = Path.home() / ".cache/tidb-binlog/promtool/promtool"
    found = shutil.which("promtool") or (str(fetched) if fetched.exists() else None)
    if found is None:
        missing("promtool is not installed: scripts/need.sh promtool")
    assert found is not None
    return found


def alarms() -> list[str]:
    return [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    ran = subprocess.run([promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    config = (ROOT / "deploy/compose/prometheus.yml").read_text().replace("/etc/prometheus/rules.yml", str(RULES))
    (tmp_path / "prometheus.yml").write_text(config)
    ran = subprocess.run(
        [promtool(), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alarm_fires_and_is_silent_where_it_must() -> None:
    names = [one["name"] for one in yaml.safe_load(TESTS.read_text())["tests"]]
    assert sorted(names) == sorted(f"{alarm} {how}" for alarm in alarms() for how in ("fires", "is silent"))
    ran = subprocess.run([promtool(), "test", "rules", str(TESTS)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("threshold", ["> 120", "> 60", "== 0", "< 0.15"])
def test_a_changed_threshold_fails_the_tests_of_the_rules(threshold: str, tmp_path: Path) -> None:
    changed = RULES.read_text().replace(
        threshold, threshold.replace("> ", "> 9").replace("== 0", "== 2").replace("< 0.", "< 0.0")
    )
    assert changed != RULES.read_text()
    (tmp_path / "rules.yml").write_text(changed)
    shutil.copy(TESTS, tmp_path)
    ran = subprocess.run(
        [promtool(), "test", "rules", str(tmp_path / TESTS.name)], capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0


def test_alert_runbook_url_leads_to_its_section() -> None:
    """`runbook_url` is a page of the site, below the address that external_labels names."""
    text = (ROOT / "docs/alarms.md").read_text()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == alarms()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            leads = f"{{{{ $externalLabels.docs }}}}/alarms.html#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook_url"] == leads
            said = text.split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
            assert len(said.split()) > 15, f"nothing to do at {rule['alert']}"


def test_alert_texts_are_filled_in_by_prometheus(tmp_path: Path) -> None:
    """By Prometheus' own templates: the values, and where the documentation is served."""
    case = {
        "interval": "15s",
        "external_labels": {"docs": "http://docs.example/binlog"},
        "input_series": [{"series": 'up{instance="p:9250",job="pump"}', "values": "0x40"}],
        "alert_rule_test": [
            {
                "alertname": "PumpDown",
                "eval_time": "5m",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "critical", "instance": "p:9250", "job": "pump"},
                        "exp_annotations": {
                            "summary": "Pump p:9250 does not answer",
                            "description": "Unless it was paused, it holds every drainer back. "
                            "Start it again with the same data-dir.",
                            "runbook_url": "http://docs.example/binlog/alarms.html#pumpdown",
                        },
                    }
                ],
            }
        ],
    }
    file = tmp_path / "filled.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [case]}))
    ran = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_dashboard_panels_have_queries_and_do_not_overlap() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["targets"] and panel["title"] for panel in panels)
    squares = [
        (p["gridPos"]["x"] + x, p["gridPos"]["y"] + y)
        for p in board["panels"]
        for x in range(p["gridPos"]["w"])
        for y in range(p["gridPos"]["h"])
    ]
    assert len(set(squares)) == len(squares), "panels lie over one another"
    assert all(x < 24 for x, _ in squares)


def test_dashboard_queries_are_valid_promql(tmp_path: Path) -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$\w+", "x", query)} for number, query in enumerate(queries)
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran = subprocess.run(
        [promtool(), "check", "rules", str(tmp_path / "queries.yml")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(queries) > 20 and all(asked_for(query) for query in queries)
