"""What Prometheus' rules and Grafana's dashboard ask for, and what programs export: names, types and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import yaml
from binlog.runtime import metrics

from tests.support.servers import ROOT

# Prometheus' own of every target.
OF_PROMETHEUS = {"up"}
OF_TARGETS = {"job", "instance"}
# Functions of a range, and the types that they make sense of.
FUNCTIONS = {
    "rate": {"counter", "histogram"},
    "increase": {"counter", "histogram"},
    "delta": {"gauge"},
    "predict_linear": {"gauge"},
    "changes": {"gauge"},
}
OPERATIONS_PAGE = ROOT / "docs/operations.md"

_SELECTOR = re.compile(r"(?:\b(\w+)\()?\b((?:binlog|process)_\w+|up\b)(?:\{([^}]*)\})?(\[\w+\])?")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")


@dataclass(slots=True)
class Exported:
    """Of one program: types by name, and the labels of each sample."""

    types: dict[str, str] = field(default_factory=dict)
    samples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    @staticmethod
    def of(text: str) -> Exported:
        """An answer of /metrics."""
        made = Exported()
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                made.types[name] = kind
            elif line and not line.startswith("#"):
                name, labels = re.match(r"(\w+)(?:\{(.*)\})? \S+$", line).groups()  # type: ignore[union-attr]
                made.samples.setdefault(name, []).append(dict(re.findall(r"(\w+)=\"([^\"]*)\"", labels or "")))
        return made

    def type_of(self, name: str) -> str | None:
        """Of a histogram's buckets "histogram"; None: it is not exported."""
        if name in self.types:
            return self.types[name] if self.types[name] != "histogram" else None
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return "histogram" if self.types.get(base) == "histogram" else None

    def labels_of(self, name: str) -> list[dict[str, str]]:
        """Of each sample; one that has labels has none before its first event, and is as docs/operations.md says."""
        if name in self.samples:
            return self.samples[name]
        short = re.escape(re.sub(r"^binlog_|_(bucket|sum|count)$", "", name))
        found = re.search(rf"`{short}\{{([\w,]+)\}}`", OPERATIONS_PAGE.read_text())
        return [dict.fromkeys(found[1].split(","), "")] if found else [{}]


def of_lake() -> str:
    """What a drainer into a lake exports beside the others, which do not load this module."""
    from drainer.lake import merging  # noqa: F401

    return "".join(line for line in metrics.render().decode().splitlines(keepends=True) if "_drainer_lake_" in line)


def asked_for(query: str) -> set[str]:
    """Names of metrics in a PromQL text."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", query)
    return set(re.findall(r"\b(?:binlog|process)_\w+|\bup\b", bare))


def rules() -> list[dict[str, object]]:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    """Of the alarms and of the dashboard."""
    board = json.loads((ROOT / "deploy/grafana/dashboards/tidb-binlog.json").read_text())
    of_panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return [*(str(rule["expr"]) for rule in rules()), *of_panels]


def faults(query: str, programs: Mapping[str, Exported]) -> list[str]:
    """Why the query would find nothing, or nonsense. `programs`: by job."""
    wrong = []
    available: set[str] = set(OF_TARGETS)
    for function, name, matchers, window in _SELECTOR.findall(query):
        if name in OF_PROMETHEUS:
            continue
        asked = _MATCHER.findall(matchers)
        jobs = [job for job in programs if all(_fits(sign, text, job) for label, sign, text in asked if label == "job")]
        exporting = [programs[job] for job in jobs if programs[job].type_of(name) is not None]
        if not exporting:
            wrong.append(f"{name} is not exported by {' or '.join(jobs) or 'any job'}")
            continue
        kind = str(exporting[0].type_of(name))
        if window and kind not in FUNCTIONS.get(function, set()):
            wrong.append(f"{function}() of the {kind} {name}")
        samples = [labels for program in exporting for labels in program.labels_of(name)]
        available |= {label for labels in samples for label in labels}
        wrong += [
            f"{name} has no sample with {label}{sign}{text!r}"
            for label, sign, text in asked
            if label not in OF_TARGETS
            and not any(label in labels and _fits(sign, text, labels[label]) for labels in samples)
        ]
    for group in re.findall(r"\b(?:by|ignoring|on) \(([^)]*)\)|\bignoring\(([^)]*)\)", query):
        wrong += [f"no label {one}" for text in group for one in _names(text) if one not in available]
    if "histogram_quantile" in query and not re.search(r"by \([^)]*\ble\b[^)]*\) \(rate\(\w+_bucket\b", query):
        wrong.append("histogram_quantile not of rates of buckets by le")
    return wrong


def label_faults(rule: Mapping[str, object], programs: Mapping[str, Exported]) -> list[str]:
    """Labels in the texts of an alarm that its series have not."""
    query = str(rule["expr"])
    grouped = re.search(r"\bby \(([^)]*)\)", query)
    kept = set(_names(grouped[1])) if grouped else set(OF_TARGETS)
    if not grouped:
        for name in asked_for(query) - OF_PROMETHEUS:
            kept |= {label for one in programs.values() for labels in one.labels_of(name) for label in labels}
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    return [f"{rule['alert']} names the label {one}" for one in sorted(named - kept)]


def _names(text: str) -> Iterable[str]:
    return filter(None, (one.strip() for one in text.split(",")))


def _fits(sign: str, text: str, value: str) -> bool:
    if "$" in text:
        return True  # a variable of the dashboard
    found = re.fullmatch(text, value) is not None if "~" in sign else text == value
    return found != sign.startswith("!")
