"""Alerts and dashboards use only metrics, labels and values that connectors and the operator export."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from mirrorflow_core.reports import GroupsReport, Guarantee, HeartbeatReport, PartitionPhase, SchemasReport
from mirrorflow_core.settings import MetricNames
from mirrorflow_operator.metrics import Metrics
from mirrorflow_replicator.http import metrics
from tests.contract.expressions import selections
from tests.unit.http.reports import NOW_S, connector, partition, samples_of_progress, task, view

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "mirrorflow" / "files"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
# The labels that Prometheus and the monitors of the chart add to each series.
PROMETHEUS_LABELS = frozenset({"namespace", "pod", "container", "job", "instance"})
PROMETHEUS_OWN = {"up": PROMETHEUS_LABELS}
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ", re.MULTILINE)
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
ON_LABELS = re.compile(r"\bon \(([^)]*)\)")


def _connector_metrics() -> str:
    """Returns metrics with every series, of a source connector with errors, of stopped ones, and of a checkpoint and a
    schema connector.
    """
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
    schemas = connector(
        task(),
        name="MirrorSchemaConnector",
        schemas=SchemasReport(subjects=3, versions=7, missing=1, conflicts=1, registered=6, passed_s=NOW_S),
    )
    rendered = view(
        source,
        *paused,
        checkpoints,
        schemas,
        samples=samples_of_progress(source),
        metric_names=frozenset(MetricNames),
    )
    return "".join(metrics.render(rendered))


def _series() -> dict[str, tuple[frozenset[str], frozenset[tuple[str, str]]]]:
    """Maps each metric of connectors to its labels and their possible values."""
    series: dict[str, tuple[frozenset[str], frozenset[tuple[str, str]]]] = {}
    for name, inside in SAMPLE.findall(_connector_metrics()):
        pairs = frozenset(LABEL.findall(inside))
        labels, values = series.get(name, (frozenset(), frozenset()))
        series[name] = (labels | {label for label, _ in pairs}, values | pairs)
    return series


def _operator_series() -> dict[str, frozenset[str]]:
    """Maps each metric of the operator to its labels."""
    series: dict[str, frozenset[str]] = {}
    for metric in vars(Metrics()).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        (family,) = metric.describe()
        labels = frozenset(metric._labelnames)
        series[f"{family.name}_total" if family.type == "counter" else family.name] = labels
        if family.type == "histogram":
            series[f"{family.name}_bucket"] = labels | {"le"}
    return series


SERIES = _series()
OPERATOR_SERIES = _operator_series()


def _without_variables(expression: str) -> str:
    """Returns *expression* with durations for Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$__range", "3h")


def _errors(expression: str) -> Iterator[str]:
    """Yields each metric, label and value in *expression* that does not exist."""
    for selection in selections(expression):
        labels, values = SERIES.get(selection.metric, (OPERATOR_SERIES.get(selection.metric), frozenset()))
        if selection.metric in PROMETHEUS_OWN:
            continue
        if labels is None:
            yield f"{selection.metric} is no metric"
            continue
        for label in sorted(selection.labels - labels - PROMETHEUS_LABELS):
            yield f"{selection.metric} has no label {label}"
        for label, value in sorted(selection.values):
            if selection.metric in SERIES and label in labels and (label, value) not in values:
                yield f"{selection.metric} is never {label}={value}"


def test_each_metric_is_documented() -> None:
    """The other tests of this module rely on these metrics."""
    text = (ROOT / "docs" / "metrics.md").read_text()

    assert len(SERIES) > 30
    assert len(OPERATOR_SERIES) > 8
    assert [] == [name for name in SERIES if name.startswith("mirrorflow_") and name not in text]
    assert [] == [name for name in OPERATOR_SERIES if not name.endswith("_bucket") and name not in text]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_use_existing_metrics_labels_and_values(alert: dict[str, Any]) -> None:
    """The annotations of an alert use only labels that its expression keeps."""
    expression = alert["expr"]
    kept = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))

    assert list(_errors(expression)) == []
    assert used <= kept
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    """An alert links to a heading of docs/runbooks.md, which explains the alert and what to do."""
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
def test_dashboards_use_existing_metrics_labels_and_values(dashboard: Path) -> None:
    """This covers panels and variables. Legends use only labels that the expression keeps."""
    content = json.loads(dashboard.read_text())
    expressions = [target["expr"] for panel in content["panels"] for target in panel["targets"]]
    queries = [variable["query"] for variable in content["templating"]["list"] if variable["type"] == "query"]
    series = [match[1] for query in queries if (match := re.match(r"label_values\((.*), \w+\)$", query))]

    assert len(series) == len(queries)
    assert [] == [
        (expression, error)
        for expression in (*expressions, *series)
        for error in _errors(_without_variables(expression))
    ]
    for panel in content["panels"]:
        for target in panel["targets"]:
            kept = {
                label
                for labels in re.findall(r"by \(([^)]*)\)", target["expr"])
                for label in labels.split(", ")
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


def test_the_dashboard_of_flows_begins_with_single_values_and_applies_its_filters() -> None:
    """Each panel filters by namespace and flow, except those about the whole operator."""
    content = json.loads((FILES / "dashboards" / "flows.json").read_text())
    top = [panel for panel in content["panels"] if panel["gridPos"]["y"] == 0]
    unfiltered = {"Flows not Ready", "Versions"}

    assert [variable["name"] for variable in content["templating"]["list"]] == [
        "datasource",
        "namespace",
        "flow",
        "topic",
    ]
    assert {panel["type"] for panel in top} == {"stat"}
    assert {"Flows not Ready", "Worst lag", "Losses"} <= {panel["title"] for panel in top}
    assert "table" in {panel["type"] for panel in content["panels"]}
    assert [] == [
        panel["title"]
        for panel in content["panels"]
        for target in panel["targets"]
        if panel["title"] not in unfiltered and "$flow" not in target["expr"]
    ]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_select_both_forms_of_mm2s_metrics(dashboard: Path) -> None:
    """`metric.names.formats` selects one form or both."""
    content = json.loads(dashboard.read_text())
    names = [
        {selection.metric for selection in selections(_without_variables(target["expr"]))}
        for panel in content["panels"]
        for target in panel["targets"]
    ]

    for selected in names:
        legacy = {name.removeprefix(metrics.MM2) for name in selected if name.startswith(metrics.MM2)}
        new = {name.removeprefix(metrics.PLUGINS) for name in selected if name.startswith(metrics.PLUGINS)}
        assert legacy == new


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap_and_have_unique_ids(dashboard: Path) -> None:
    """Grafana hides one of two panels with the same id or position."""
    panels = json.loads(dashboard.read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_errors_in_expressions_are_reported() -> None:
    assert list(_errors("sum by (flow) (mirrorflow_lag)")) == ["mirrorflow_lag is no metric"]
    assert list(_errors("sum by (colour) (mirrorflow_record_lag)")) == [
        "mirrorflow_record_lag has no label colour"
    ]
    assert list(_errors('mirrorflow_groups{state="broken"}')) == ["mirrorflow_groups is never state=broken"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        selections("sum by (flow (x)")
