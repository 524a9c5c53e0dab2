"""Alerts and dashboards ask for what `/metrics` has: every name, label and word, of connectors and of the operator."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from mirrorflow_core.reports import GroupsReport, Guarantee, HeartbeatReport, PartitionPhase
from mirrorflow_operator.metrics import Metrics
from mirrorflow_replicator.http import metrics
from tests.contract.expressions import asked_for
from tests.unit.http.reports import NOW_S, connector, partition, samples_of_progress, task, view

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "mirrorflow" / "files"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
# What Prometheus and the monitors of the chart put on every series.
OF_PROMETHEUS = frozenset({"namespace", "pod", "container", "job", "instance"})
PROMETHEUS_OWN = {"up": OF_PROMETHEUS}
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ", re.MULTILINE)
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
ON_LABELS = re.compile(r"\bon \(([^)]*)\)")


def _of_connectors() -> str:
    """A real page: a source connector that has met everything, a paused one that has failed, and a checkpoint connector."""
    source = connector(
        task(
            partition(0, latency_ms=5, record_age_ms=3, batches_raw=7),
            partition(1, "other", phase=PartitionPhase.STOPPED, reason="RecordTooLarge"),
            partition(2, guarantee=Guarantee.AT_LEAST_ONCE),
            partition(3, reason="WritesRefused", stalled_since_ms=1),
            errors={"RecordTooLarge": 2},
        ),
        heartbeats=(HeartbeatReport(cluster="B", topic="A.heartbeats", timestamp_ms=int(NOW_S * 1000)),),
    )
    paused = [
        connector(task(number=0, state=state), name=state, state=state)
        for state in ("FAILED", "PAUSED", "STOPPED")
    ]
    groups = GroupsReport(
        selected=5, failing=1, unlike=2, active=1, checkpoints=40, moved=30, latencies=(),
        translations={"exact": 7, "bound": 2, "unknown": 1},
    )  # fmt: skip
    checkpoints = connector(task(), name="MirrorCheckpointConnector", groups=groups)
    return "".join(metrics.render(view(source, *paused, checkpoints, samples=samples_of_progress(source))))


def _series() -> dict[str, tuple[frozenset[str], frozenset[tuple[str, str]]]]:
    """Of each metric of connectors: its labels, and the words that they can be."""
    found: dict[str, tuple[frozenset[str], frozenset[tuple[str, str]]]] = {}
    for name, inside in SAMPLE.findall(_of_connectors()):
        pairs = frozenset(LABEL.findall(inside))
        labels, words = found.get(name, (frozenset(), frozenset()))
        found[name] = (labels | {label for label, _ in pairs}, words | pairs)
    return found


def _of_the_operator() -> dict[str, frozenset[str]]:
    """Each series that the operator's metrics have, and its labels."""
    found: dict[str, frozenset[str]] = {}
    for metric in vars(Metrics()).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        (family,) = metric.describe()
        labels = frozenset(metric._labelnames)
        found[f"{family.name}_total" if family.type == "counter" else family.name] = labels
        if family.type == "histogram":
            found[f"{family.name}_bucket"] = labels | {"le"}
    return found


SERIES = _series()
OF_OPERATOR = _of_the_operator()


def _wrong(expression: str) -> Iterator[str]:
    """What *expression* asks for in vain."""
    for asked in asked_for(expression):
        labels, words = SERIES.get(asked.metric, (OF_OPERATOR.get(asked.metric), frozenset()))
        if asked.metric in PROMETHEUS_OWN:
            continue
        if labels is None:
            yield f"{asked.metric} is no metric"
            continue
        for label in sorted(asked.labels - labels - OF_PROMETHEUS):
            yield f"{asked.metric} has no label {label}"
        for label, word in sorted(asked.values):
            if asked.metric in SERIES and label in labels and (label, word) not in words:
                yield f"{asked.metric} is never {label}={word}"


def test_the_real_pages_have_something_on_them() -> None:
    """What the other tests stand on; docs/metrics.md names every one."""
    told = (ROOT / "docs" / "metrics.md").read_text()

    assert len(SERIES) > 30
    assert len(OF_OPERATOR) > 8
    assert [] == [name for name in SERIES if name.startswith("mirrorflow_") and name not in told]
    assert [] == [name for name in OF_OPERATOR if not name.endswith("_bucket") and name not in told]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_ask_for_what_there_is(alert: dict[str, Any]) -> None:
    """And say so in words, with labels that the expression keeps."""
    expression = alert["expr"]
    kept = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))

    assert list(_wrong(expression)) == []
    assert used <= kept
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    """The link of an alert leads to a heading of docs/runbooks.md, which says what it means, and what to do."""
    sections = dict(
        re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    )
    names = [alert["alert"] for alert in ALERTS]

    assert len(names) >= 12
    assert sorted(set(names)) == sorted(sections)
    assert len(names) == len(set(names))
    for alert in ALERTS:
        assert alert["annotations"]["runbook_url"] == f"RUNBOOKS#{alert['alert'].lower()}"
    assert [] == [name for name, text in sections.items() if len(text.split()) < 20]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_what_there_is(dashboard: Path) -> None:
    """Panel by panel, variables too; legends name labels that the sum keeps."""
    content = json.loads(dashboard.read_text())
    expressions = [target["expr"] for panel in content["panels"] for target in panel["targets"]]
    queries = [one["query"] for one in content["templating"]["list"] if one["type"] == "query"]
    series = [found[1] for query in queries if (found := re.match(r"label_values\((.*), \w+\)$", query))]

    assert len(series) == len(queries)
    assert [] == [
        (expression, wrong)
        for expression in (*expressions, *series)
        for wrong in _wrong(expression.replace("$__rate_interval", "5m").replace("$__range", "3h"))
    ]
    for panel in content["panels"]:
        for target in panel["targets"]:
            kept = {
                one for labels in re.findall(r"by \(([^)]*)\)", target["expr"]) for one in labels.split(", ")
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


def test_the_dashboard_of_flows_begins_with_single_figures_and_its_filters_apply() -> None:
    """What is wrong is seen at once; each panel honours the namespace and the flow, but for those of the whole operator."""
    content = json.loads((FILES / "dashboards" / "flows.json").read_text())
    top = [one for one in content["panels"] if one["gridPos"]["y"] == 0]
    unfiltered = {"Flows not Ready", "Versions"}

    assert [one["name"] for one in content["templating"]["list"]] == [
        "datasource",
        "namespace",
        "flow",
        "topic",
    ]
    assert {one["type"] for one in top} == {"stat"}
    assert {"Flows not Ready", "Worst lag", "Losses"} <= {one["title"] for one in top}
    assert "table" in {one["type"] for one in content["panels"]}
    assert [] == [
        panel["title"]
        for panel in content["panels"]
        for target in panel["targets"]
        if panel["title"] not in unfiltered and "$flow" not in target["expr"]
    ]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_neither_overlap_nor_share_a_number(dashboard: Path) -> None:
    """Grafana would hide one of two."""
    panels = json.loads(dashboard.read_text())["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24


def test_a_wrong_expression_is_found() -> None:
    """The checks themselves."""
    assert list(_wrong("sum by (flow) (mirrorflow_lag)")) == ["mirrorflow_lag is no metric"]
    assert list(_wrong("sum by (colour) (mirrorflow_record_lag)")) == [
        "mirrorflow_record_lag has no label colour"
    ]
    assert list(_wrong('mirrorflow_groups{state="broken"}')) == ["mirrorflow_groups is never state=broken"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        asked_for("sum by (flow (x)")
