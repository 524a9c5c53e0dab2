"""The objects, Events and status that each pass over a flow writes. The API server is a dict.

The golden files are `golden/<scenario>.passes.txt` (`tests.harness.goldens`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.cluster.cache import ClusterCache
from mirrorflow_operator.cluster.client import CHILDREN, DEPLOYMENT, EVENT, JOB, MIRROR_FLOW, POD, ObjectKind
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.pod_events import PodEventReader
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.errors import BusyError, NotFoundError, OperatorError, RejectedError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.reconcile.object_writer import ObjectWriter
from mirrorflow_operator.reconcile.observe import Observer
from mirrorflow_operator.reconcile.reconciler import Reconciler
from mirrorflow_operator.reconcile.status_writer import FlowStatusWriter
from mirrorflow_operator.settings import Settings
from tests.harness.goldens import check_golden
from tests.unit.operator.observations import NOW_S, document

GOLDENS = Path(__file__).parent / "golden"
Object = dict[str, Any]
KEY = ("mirrors", "east-to-west")
KINDS = {kind.name: kind for kind in (*CHILDREN, MIRROR_FLOW, POD)}


@dataclass
class DictApi:
    """Stores objects like the API server, with uid, resourceVersion, and a generation that increases with the spec."""

    cache: ClusterCache
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    version: int = 100
    written: list[str] = field(default_factory=list)
    before_apply: Callable[[Object], None] = lambda _: None

    async def apply(
        self,
        kind: ObjectKind,
        body: Object,
        *,
        subresource: str = "",
        force: bool = True,
        field_manager: str = "",
    ) -> Object:
        await asyncio.sleep(0)
        self.before_apply(body)
        name = body["metadata"]["name"]
        if field_manager:
            pins = body["metadata"]["annotations"]
            self.written.append(f"pin {' '.join(f'{key}={value}' for key, value in pins.items())}")
            stored = deepcopy(self.get(kind, name))
            stored["metadata"]["annotations"] |= pins
            return self.store(kind, stored)
        if subresource:
            return self.store(kind, {**self.get(kind, name), "status": deepcopy(body["status"])})
        self.written.append(f"apply {kind.name} {name}")
        return self.store(kind, deepcopy(body))

    async def create(self, kind: ObjectKind, namespace: str, body: Object) -> Object:
        assert kind is EVENT
        self.written.append(f"event {body['reason']}: {body['message']}")
        return body

    async def delete(self, kind: ObjectKind, namespace: str, name: str, *, uid: str) -> None:
        if (kind.name, namespace, name) not in self.objects:
            raise NotFoundError(f"DELETE {kind.plural}/{name}", "not found", status=404)
        self.written.append(f"delete {kind.name} {name}")
        body = self.objects.pop((kind.name, namespace, name))
        self.cache.handle_event(kind, "DELETED", body)

    async def chunks(
        self, kind: ObjectKind, namespace: str, *, fields: str = ""
    ) -> AsyncIterator[tuple[int, list[Object]]]:
        name = fields.removeprefix("metadata.name=")
        stored = self.objects.get((kind.name, namespace, name))
        yield self.version, [] if stored is None else [stored]

    def get(self, kind: ObjectKind, name: str) -> Object:
        return self.objects[kind.name, KEY[0], name]

    def store(self, kind: ObjectKind, body: Object, *, is_watched: bool = False) -> Object:
        """Stores *body* as a new version. With *is_watched*, a watch reports it."""
        metadata = body["metadata"]
        key = (kind.name, metadata["namespace"], metadata["name"])
        old = self.objects.get(key, {"metadata": {"generation": 0}})
        self.version += 1
        changed = old.get("spec") != body.get("spec")
        server_fields = {
            "uid": old["metadata"].get("uid") or f"uid-{self.version}",
            "resourceVersion": str(self.version),
            "generation": old["metadata"]["generation"] + changed,
            "creationTimestamp": old["metadata"].get("creationTimestamp", "2026-11-18T11:00:00Z"),
        }
        stored = {**body, "metadata": {**metadata, **server_fields}}
        if "status" in old and "status" not in body:
            stored["status"] = old["status"]
        self.objects[key] = stored
        if is_watched:
            self.cache.handle_event(kind, "MODIFIED", stored)
        return deepcopy(stored)


class FlowSimulation:
    """One flow, the passes over it, and a transcript of what they wrote."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.cache = ClusterCache()
        self.api = DictApi(self.cache)
        self.lines: list[str] = []
        self.poller = Poller(changed=lambda _: None)
        self.start("1.1.0", "1.0.0")

    def start(self, *versions: str) -> None:
        """Starts a new operator process without memory.

        It offers these versions of the replicator.
        """
        metrics, client = Metrics(), self.api
        events = EventPublisher(client=client, metrics=metrics, instance="test")  # type: ignore[arg-type]
        self.reconciler = Reconciler(
            settings=Settings(replicator_versions=versions),
            observer=Observer(
                cache=self.cache,
                poller=self.poller,
                pod_events=PodEventReader(client=client),  # type: ignore[arg-type]
                wall_clock=lambda: self.now_s,
            ),
            objects=ObjectWriter(client=client, cache=self.cache, events=events, metrics=metrics),  # type: ignore[arg-type]
            statuses=FlowStatusWriter(
                client=client,  # type: ignore[arg-type]
                cache=self.cache,
                events=events,
                metrics=metrics,
                wall_clock=lambda: self.now_s,
            ),
        )

    def write(self, name: str = KEY[1], annotations: Object | None = None, **spec: Any) -> None:
        """Writes the flow, as a user does."""
        body = document(**spec)
        body["metadata"] |= {"name": name, "annotations": annotations or {}}
        self.api.store(MIRROR_FLOW, body, is_watched=True)
        self.lines.append(f"-- {name}: {annotations or ''}{spec}")

    def roll_out(self) -> None:
        """Gives every Deployment its desired number of ready pods."""
        for (kind, _, _), body in list(self.api.objects.items()):
            if kind == DEPLOYMENT.name:
                self._roll_out(body)
        self.lines.append("-- rolled out")

    def _roll_out(self, body: Object) -> None:
        count, name = body["spec"]["replicas"], body["metadata"]["name"]
        done = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
        status = {
            "observedGeneration": body["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": count,
            "conditions": [done],
        }
        self.api.store(DEPLOYMENT, {**body, "status": status}, is_watched=True)
        for key in [key for key in self.api.objects if key[0] == POD.name and key[2].startswith(name)]:
            self.cache.handle_event(POD, "DELETED", self.api.objects.pop(key))
        template = body["spec"]["template"]
        for number in range(count):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": f"{name}-{number}", "namespace": KEY[0]},
                "spec": template["spec"],
                "status": {
                    "phase": "Running",
                    "podIP": "10.0.0.1",
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            self.api.store(POD, pod, is_watched=True)

    def end_job(self, outcome: str = "Complete") -> None:
        """Ends the Job with *outcome*."""
        for (kind, _, _), body in list(self.api.objects.items()):
            if kind == JOB.name:
                ended = {"type": outcome, "status": "True", "lastTransitionTime": "2026-11-18T12:00:00Z"}
                self.api.store(JOB, {**body, "status": {"conditions": [ended]}}, is_watched=True)
        self.lines.append(f"-- Job: {outcome}")

    def run(self, *, after_s: float = 0.0, name: str = KEY[1]) -> None:
        """Runs one pass."""
        self.now_s += after_s
        asyncio.run(self._run((KEY[0], name)))

    async def _run(self, key: tuple[str, str]) -> None:
        try:
            again_s = await self.reconciler.reconcile(key)
            outcome = "" if again_s is None else f", again after {again_s:.0f} s"
        except OperatorError as error:
            outcome = f", {type(error).__name__}: {error}"
        self.lines += [
            f"pass after {self.now_s - NOW_S:.0f} s{outcome}",
            *map("  {}".format, self.api.written),
        ]
        self.api.written.clear()
        self.lines.append(f"  polls {len(self.poller)}, holds {self.reconciler.held}")
        flow = self.api.objects.get((MIRROR_FLOW.name, *key))
        for condition in [] if flow is None else flow.get("status", {}).get("conditions", ()):
            self.lines.append(
                f"  {condition['type']}={condition['status']} {condition['reason']}: {condition['message']}"
            )
        for name, status in ({} if flow is None else flow.get("status", {}).get("connectors", {})).items():
            self.lines.append(f"  {name}: {status['phase']}, {status.get('readyReplicas', 0)} ready")
        for field_name in ("seed", "verify", "restart"):
            if flow is not None and field_name in flow.get("status", {}):
                self.lines.append(f"  {field_name}: {flow['status'][field_name]}")


def started_flow(**spec: Any) -> FlowSimulation:
    simulation = FlowSimulation()
    simulation.write(**spec)
    simulation.run()
    return simulation


def a_new_flow_is_started_and_then_unchanged() -> FlowSimulation:
    simulation = started_flow()
    simulation.run()
    simulation.roll_out()
    simulation.run()
    simulation.run(after_s=70)
    return simulation


def a_changed_setting_rolls_one_connector() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.run()
    simulation.write(connectors={"source": {"config": {"offset.lag.max": "7"}}})
    simulation.run()
    simulation.roll_out()
    simulation.run()
    return simulation


def scaling_up_and_down_changes_the_mode_with_one_pod() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.run()
    for count in (3, 1):
        simulation.write(connectors={"source": {"replicas": count, "tasks": 4}})
        for _ in range(3):
            simulation.run()
            simulation.roll_out()
        simulation.run()
    return simulation


def a_connector_without_work_is_pruned() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.write(heartbeats={"emitTo": []})
    simulation.run()
    simulation.run()
    return simulation


def a_connector_moves_to_a_shared_pod_and_back() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    for colocate in (["checkpoint", "heartbeat"], []):
        simulation.write(connectors={"colocate": colocate})
        for _ in range(3):
            simulation.run()
            simulation.roll_out()
    return simulation


def a_seed_holds_the_source_connector_until_it_ends() -> FlowSimulation:
    simulation = started_flow(seed={"runId": "1"})
    simulation.run()
    simulation.roll_out()
    simulation.run(after_s=5)
    simulation.end_job()
    simulation.run(after_s=5)
    simulation.roll_out()
    simulation.run(after_s=5)
    return simulation


def a_seed_without_progress_stops_holding_the_connector_after_ten_minutes() -> FlowSimulation:
    simulation = started_flow(seed={"runId": "1"})
    simulation.run(after_s=5)
    simulation.run(after_s=700)
    return simulation


def a_failed_verification_is_reported_and_a_new_one_runs() -> FlowSimulation:
    simulation = started_flow(verify={"runId": "1"})
    simulation.run()
    simulation.end_job("Failed")
    simulation.run(after_s=5)
    simulation.write(verify={"runId": "2", "schedule": "0 3 * * *"})
    simulation.run(after_s=5)
    return simulation


def a_stopped_flow_has_no_pods() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    for state in ("Paused", "Stopped", "Running"):
        simulation.write(state=state)
        simulation.run()
        simulation.roll_out()
        simulation.run()
    return simulation


def an_invalid_spec_changes_nothing() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.write(topics={"include": ["a,b"]})
    simulation.run()
    return simulation


def an_unknown_version_starts_nothing() -> FlowSimulation:
    return started_flow(version="9.9.9")


def a_conflicting_flow_is_stopped_and_then_runs() -> FlowSimulation:
    simulation = started_flow()
    simulation.write("other")
    simulation.run(name="other")
    simulation.run()
    simulation.cache.handle_event(
        MIRROR_FLOW, "DELETED", simulation.api.objects.pop((MIRROR_FLOW.name, *KEY))
    )
    simulation.run()
    simulation.run(name="other")
    return simulation


def a_foreign_object_with_a_needed_name_is_not_changed() -> FlowSimulation:
    simulation = FlowSimulation()
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "east-to-west-source", "namespace": KEY[0]},
    }
    simulation.api.store(KINDS["ConfigMap"], body)
    simulation.write()
    simulation.run()
    simulation.run()
    return simulation


def a_forbidden_namespace_is_reported() -> FlowSimulation:
    simulation = FlowSimulation()
    simulation.cache.unreadable[KEY[0]] = "pods is forbidden"
    simulation.write()
    simulation.run()
    return simulation


def a_busy_server_ends_the_pass_and_the_next_one_completes_it() -> FlowSimulation:
    simulation = FlowSimulation()
    failing = [True]

    def refuse(body: Object) -> None:
        if body["metadata"]["name"] == "east-to-west-checkpoint" and failing:
            failing.clear()
            raise BusyError("PATCH", "too many requests", status=429)

    simulation.api.before_apply = refuse
    simulation.write()
    simulation.run()
    simulation.run()
    simulation.run()
    return simulation


def a_refused_deployment_is_not_sent_again_and_stops_no_other() -> FlowSimulation:
    """It is sent again when the spec changes."""
    simulation = FlowSimulation()

    def refuse(body: Object) -> None:
        if body["kind"] == "Deployment" and body["spec"]["template"]["spec"].get("affinity"):
            raise RejectedError("PATCH", "spec.template.spec.affinity: Required value", status=422)

    simulation.api.before_apply = refuse
    invalid_affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}
    }
    simulation.write(connectors={"source": {"template": {"affinity": invalid_affinity}}})
    simulation.run()
    simulation.run(after_s=1.0)
    simulation.roll_out()
    simulation.run(after_s=400.0)
    simulation.write()
    simulation.run(after_s=1.0)
    return simulation


def an_object_of_a_different_flow_is_not_changed() -> FlowSimulation:
    """Objects of two flows can have the same name."""
    simulation = started_flow(connectors={"source": {"replicas": 2}})
    simulation.write(
        "east-to-west-source",
        **{side: {"alias": side, "bootstrapServers": [f"{side}:1"]} for side in ("source", "target")},
    )
    for _ in range(2):
        simulation.run(name="east-to-west-source")
        simulation.run()
    return simulation


def a_change_made_during_a_pass_is_corrected_by_the_next() -> FlowSimulation:
    simulation = FlowSimulation()

    def change_meanwhile(body: Object) -> None:
        if body["metadata"]["name"] == "east-to-west-heartbeat" and body["kind"] == "Deployment":
            changed = deepcopy(simulation.api.get(DEPLOYMENT, "east-to-west-source"))
            changed["spec"]["replicas"] = 9
            simulation.api.store(DEPLOYMENT, changed, is_watched=True)

    simulation.api.before_apply = change_meanwhile
    simulation.write()
    simulation.run()
    simulation.api.before_apply = lambda _: None
    simulation.run()
    simulation.run()
    return simulation


def a_deleted_object_is_created_again() -> FlowSimulation:
    simulation = started_flow()
    simulation.run()
    key = (DEPLOYMENT.name, KEY[0], "east-to-west-source")
    simulation.cache.handle_event(DEPLOYMENT, "DELETED", simulation.api.objects.pop(key))
    simulation.run()
    return simulation


def a_flow_held_by_a_finalizer_reports_it_and_is_not_changed() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.run()
    flow = deepcopy(simulation.api.get(MIRROR_FLOW, KEY[1]))
    flow["metadata"] |= {"deletionTimestamp": "2026-11-18T12:00:00Z", "finalizers": ["example.com/backup"]}
    simulation.api.store(MIRROR_FLOW, flow, is_watched=True)
    key = (DEPLOYMENT.name, KEY[0], "east-to-west-source")
    simulation.cache.handle_event(DEPLOYMENT, "DELETED", simulation.api.objects.pop(key))
    simulation.run()
    return simulation


def a_restart_is_reported_after_all_pods_were_replaced() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.write(restart={"runId": "1"})
    simulation.run()
    simulation.roll_out()
    simulation.run()
    return simulation


def a_pinned_version_survives_an_upgrade_of_the_operator() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    simulation.run()
    simulation.start("1.2.0", "1.1.0")
    simulation.run()
    simulation.start("1.3.0", "1.2.0")
    simulation.run()
    return simulation


def reconciling_is_paused_by_an_annotation_and_continues() -> FlowSimulation:
    simulation = started_flow()
    simulation.roll_out()
    pause = {"mirrorflow.io/pause-reconciliation": "true"}
    simulation.write(annotations=pause, connectors={"source": {"tasks": 2}})
    simulation.run()
    simulation.write(connectors={"source": {"tasks": 2}})
    simulation.run()
    return simulation


SCENARIOS = (
    a_new_flow_is_started_and_then_unchanged,
    a_changed_setting_rolls_one_connector,
    scaling_up_and_down_changes_the_mode_with_one_pod,
    a_connector_without_work_is_pruned,
    a_connector_moves_to_a_shared_pod_and_back,
    a_seed_holds_the_source_connector_until_it_ends,
    a_seed_without_progress_stops_holding_the_connector_after_ten_minutes,
    a_failed_verification_is_reported_and_a_new_one_runs,
    a_stopped_flow_has_no_pods,
    an_invalid_spec_changes_nothing,
    an_unknown_version_starts_nothing,
    a_conflicting_flow_is_stopped_and_then_runs,
    a_foreign_object_with_a_needed_name_is_not_changed,
    a_forbidden_namespace_is_reported,
    a_busy_server_ends_the_pass_and_the_next_one_completes_it,
    a_refused_deployment_is_not_sent_again_and_stops_no_other,
    an_object_of_a_different_flow_is_not_changed,
    a_change_made_during_a_pass_is_corrected_by_the_next,
    a_deleted_object_is_created_again,
    a_flow_held_by_a_finalizer_reports_it_and_is_not_changed,
    a_restart_is_reported_after_all_pods_were_replaced,
    a_pinned_version_survives_an_upgrade_of_the_operator,
    reconciling_is_paused_by_an_annotation_and_continues,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_passes_write_what_the_golden_file_records(scenario: Callable[[], FlowSimulation]) -> None:
    check_golden(GOLDENS / f"{scenario.__name__}.passes.txt", "\n".join(scenario().lines) + "\n")


def test_a_refusal_that_is_kept_keeps_no_frames_of_the_passes() -> None:
    """A flow that is refused for weeks is reported by each pass, with an error of the same size."""
    simulation = FlowSimulation()
    error = RejectedError("PATCH", "spec: Required value", status=422)

    def refuse(body: Object) -> None:
        if body["kind"] == "Deployment":
            raise error

    simulation.api.before_apply = refuse
    simulation.write()
    for _ in range(5):
        simulation.run(after_s=1.0)

    assert error.__traceback__ is None


def test_an_object_that_someone_else_has_just_deleted_does_not_end_the_pass() -> None:
    simulation = started_flow()
    simulation.roll_out()
    del simulation.api.objects[DEPLOYMENT.name, KEY[0], "east-to-west-heartbeat"]
    simulation.write(heartbeats={"emitTo": []})
    simulation.run()

    assert "NotFoundError" not in "\n".join(simulation.lines)
    assert "  delete ConfigMap east-to-west-heartbeat" in simulation.lines
