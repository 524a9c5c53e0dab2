"""The operator's settings, metrics and cluster cache."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from mirrorflow_operator.cluster.cache import ClusterCache
from mirrorflow_operator.cluster.client import CONFIG_MAP, MIRROR_FLOW, POD
from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.leader import Leader
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.process import Operator
from mirrorflow_operator.settings import Settings, from_environment

KEY = ("here", "flow")


def test_an_empty_environment_gives_the_defaults():
    assert from_environment({"MIRRORFLOW_NAMESPACES": "", "PATH": "/bin"}) == Settings()


def test_each_setting_is_read_from_the_environment():
    operator_settings = from_environment(
        {
            "MIRRORFLOW_NAMESPACES": "a, b,a",
            "MIRRORFLOW_REPLICATOR_IMAGE": "registry/replicator",
            "MIRRORFLOW_REPLICATOR_VERSIONS": "2,1",
            "MIRRORFLOW_SEED_IMAGE": "registry/seed",
            "MIRRORFLOW_SEED_SERVICE_ACCOUNT": "driver",
            "POD_NAMESPACE": "system",
            "POD_NAME": "pod",
            "MIRRORFLOW_LISTENER": "[::1]:9",
            "MIRRORFLOW_POLL_S": "0.5",
            "MIRRORFLOW_PROGRESS_CA": "/ca.crt",
            "MIRRORFLOW_SETTLE_S": "5",
            "MIRRORFLOW_WORKERS": "3",
            "MIRRORFLOW_LEASE": "lease",
            "MIRRORFLOW_LEASE_S": "9",
            "MIRRORFLOW_RESYNC_S": "60",
            "MIRRORFLOW_LOG_LEVEL": "debug",
        }
    )

    assert operator_settings == Settings(
        namespaces=("a", "b"),
        replicator_image="registry/replicator",
        replicator_versions=("2", "1"),
        seed_image="registry/seed",
        seed_account="driver",
        pod_namespace="system",
        pod_name="pod",
        listener_host="::1",
        listener_port=9,
        poll_s=0.5,
        progress_ca="/ca.crt",
        settle_s=5.0,
        workers=3,
        lease="lease",
        lease_s=9.0,
        resync_s=60.0,
        log_level="DEBUG",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MIRRORFLOW_LISTENER", "8080x"),
        ("MIRRORFLOW_POLL_S", "soon"),
        ("MIRRORFLOW_POLL_S", "nan"),
        ("MIRRORFLOW_SETTLE_S", "-1"),
        ("MIRRORFLOW_WORKERS", "0"),
        ("MIRRORFLOW_LEASE_S", "1"),
        ("MIRRORFLOW_LOG_LEVEL", "loud"),
    ],
)
def test_the_error_names_an_invalid_setting(name: str, value: str):
    with pytest.raises(SettingsError, match=f"^{name} is '{value}'; write "):
        from_environment({name: value})


def test_metrics_have_prometheus_text_format():
    """Buckets are cumulative, and no series has the start time of a counter."""
    metrics = Metrics()
    metrics.reconciles.labels(result="ok").inc()
    metrics.reconciles.labels(result="ok").inc(2)
    metrics.reconcile_seconds.observe(0.05)
    metrics.queue_oldest.set_function(lambda: 0.5)

    lines = generate_latest(metrics.registry).decode().splitlines()

    assert 'mirrorflow_operator_reconciles_total{result="ok"} 3.0' in lines
    assert "mirrorflow_operator_queue_oldest_seconds 0.5" in lines
    assert 'mirrorflow_operator_reconcile_seconds_bucket{le="0.1"} 1.0' in lines
    assert 'mirrorflow_operator_reconcile_seconds_bucket{le="0.02"} 0.0' in lines
    assert 'mirrorflow_operator_reconcile_seconds_bucket{le="+Inf"} 1.0' in lines
    assert "mirrorflow_operator_reconcile_seconds_count 1.0" in lines
    assert "mirrorflow_operator_reconcile_seconds_sum 0.05" in lines
    sample = re.compile(r"mirrorflow_operator_[a-z_]+(?<!_created)(\{[a-z]+=\"[^\"]+\"\})? [0-9.]+")
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


def _object(version: int, *, uid: str = "uid", name: str = "flow", **more: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "here",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {"mirrorflow.io/flow": "flow", "mirrorflow.io/connector": "source"},
    }
    return {"metadata": metadata, **more}


@pytest.mark.parametrize(
    ("job", "ending"), [("seed", {}), ("seed", {"deletionTimestamp": "now"}), ("verify", {})]
)
def test_a_driver_is_alive_until_its_pod_has_ended(job: str, ending: dict[str, str]):
    """A terminating driver may still write, even if its Job was deleted."""
    labels = {
        "mirrorflow.io/flow": "flow",
        "mirrorflow.io/run": job,
        "batch.kubernetes.io/job-name": f"flow-{job}-1",
    }
    cache = ClusterCache()
    for version, phase, alive in ((1, "Running", {f"flow-{job}-1"}), (2, "Failed", frozenset())):
        pod = _object(version, spec={"containers": []}, status={"phase": phase})
        pod["metadata"] |= {"labels": labels, **ending}
        cache.put(POD, pod)
        assert cache.drivers_alive(KEY) == alive


def test_the_leader_counts_flows_with_failed_runs():
    """The alerts for Spark jobs use these metrics."""
    operator = Operator(settings=Settings())
    operator._gauges()
    for name, reason in (
        ("a", "SeedFailed"),
        ("b", "DifferencesFound"),
        ("c", "DifferencesFound"),
        ("d", "Equal"),
        ("e", "ArchiveOverdue"),
        ("f", "ArchiveIncomplete"),
        ("g", "RestoreFailed"),
    ):
        condition = {
            "type": "Verified",
            "status": "Unknown",
            "reason": reason,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        operator.cache.put(
            MIRROR_FLOW, _object(1, uid=name, name=name, spec={}, status={"conditions": [condition]})
        )

    def figures() -> list[float | None]:
        names = (
            "flows_seed_failed",
            "flows_different",
            "flows_verification_overdue",
            "flows_archive_failing",
            "flows_restore_failed",
        )
        return [operator.metrics.registry.get_sample_value(f"mirrorflow_operator_{name}") for name in names]

    assert figures() == [0, 0, 0, 0, 0]
    operator.leader = cast("Leader", SimpleNamespace())
    assert figures() == [1, 2, 0, 2, 1]


def test_the_leader_counts_flows_that_are_not_ready_except_paused_ones():
    """A requested pause is not a problem."""
    operator = Operator(settings=Settings())
    operator._gauges()
    for name, status, reason in (
        ("ready", "True", "Replicating"),
        ("paused", "False", "Paused"),
        ("stuck", "False", "Stuck"),
        ("unknown", "Unknown", "ProgressUnknown"),
    ):
        transition_time = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": transition_time}
        operator.cache.put(
            MIRROR_FLOW, _object(1, uid=name, name=name, spec={}, status={"conditions": [ready]})
        )
    operator.cache.put(MIRROR_FLOW, _object(1, uid="new", name="new", spec={}))
    operator.leader = cast("Leader", SimpleNamespace())

    assert operator.metrics.registry.get_sample_value("mirrorflow_operator_flows_not_ready") == 3


def test_an_outdated_event_changes_nothing():
    """The operator's own writes are cached before the watch reports them."""
    cache = ClusterCache()

    assert cache.put(CONFIG_MAP, _object(5, data={"a": "new"})) == {KEY}
    assert cache.put(CONFIG_MAP, _object(4, data={"a": "old"})) == frozenset()
    assert cache.put(CONFIG_MAP, _object(6, data={"a": "new"})) == frozenset()  # the content is unchanged
    (child,) = cache.children(KEY).values()
    assert (child.resource_version, child.content()["data"]) == ("6", {"a": "new"})


def test_deleting_an_object_keeps_a_newer_one_of_the_same_name():
    cache = ClusterCache()
    cache.put(CONFIG_MAP, _object(5, uid="first"))
    cache.put(CONFIG_MAP, _object(7, uid="second"))

    assert cache.remove(CONFIG_MAP, _object(6, uid="first")) == frozenset()
    assert cache.children(KEY)
    assert cache.remove(CONFIG_MAP, _object(8, uid="second")) == {KEY}
    assert not cache.children(KEY)


def test_objects_missing_from_a_full_list_are_removed_unless_newer():
    cache = ClusterCache()
    for number in (1, 2, 9):
        cache.put(POD, _object(number, uid=f"uid-{number}", name=f"pod-{number}", spec={"containers": []}))

    assert cache.remove_absent(POD, None, {"uid-1"}, 5) == {KEY}
    assert [pod.name for _, pod in cache.pods(KEY)] == ["pod-1", "pod-9"]
    assert cache.remove_absent(POD, "elsewhere", set(), 50) == frozenset()


def test_an_invalid_flow_is_cached_with_its_errors():
    cache = ClusterCache()

    cache.put(MIRROR_FLOW, _object(1, spec={"source": {}}, status={"lag": "nonsense"}))

    flow_resource = cache.flows[KEY].resource
    assert flow_resource.flow is None
    assert "spec.source.alias" in {error.path for error in flow_resource.errors}
    assert not flow_resource.status.conditions
