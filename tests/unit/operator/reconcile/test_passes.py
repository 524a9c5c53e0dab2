"""What each pass over a flow writes: objects, Events and the status, against an API server that is a dict.

Goldens are `golden/<scenario>.passes.txt` (`tests.harness.goldens`).
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
from mirrorflow_operator.errors import BusyError, OperatorError, RejectedError
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
    """Stores objects as the API server does: uid, resourceVersion, and a generation that rises with the spec."""

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
            stored = deepcopy(self.found(kind, name))
            stored["metadata"]["annotations"] |= pins
            return self.store(kind, stored)
        if subresource:
            return self.store(kind, {**self.found(kind, name), "status": deepcopy(body["status"])})
        self.written.append(f"apply {kind.name} {name}")
        return self.store(kind, deepcopy(body))

    async def create(self, kind: ObjectKind, namespace: str, body: Object) -> Object:
        assert kind is EVENT
        self.written.append(f"event {body['reason']}: {body['message']}")
        return body

    async def delete(self, kind: ObjectKind, namespace: str, name: str, *, uid: str) -> None:
        self.written.append(f"delete {kind.name} {name}")
        body = self.objects.pop((kind.name, namespace, name))
        self.cache.handle_event(kind, "DELETED", body)

    async def chunks(
        self, kind: ObjectKind, namespace: str, *, fields: str = ""
    ) -> AsyncIterator[tuple[int, list[Object]]]:
        name = fields.removeprefix("metadata.name=")
        found = self.objects.get((kind.name, namespace, name))
        yield self.version, [] if found is None else [found]

    def found(self, kind: ObjectKind, name: str) -> Object:
        return self.objects[kind.name, KEY[0], name]

    def store(self, kind: ObjectKind, body: Object, *, seen: bool = False) -> Object:
        """Stores *body* as a new version; *seen*: a watch reports it."""
        metadata = body["metadata"]
        found = (kind.name, metadata["namespace"], metadata["name"])
        old = self.objects.get(found, {"metadata": {"generation": 0}})
        self.version += 1
        changed = old.get("spec") != body.get("spec")
        own = {
            "uid": old["metadata"].get("uid") or f"uid-{self.version}",
            "resourceVersion": str(self.version),
            "generation": old["metadata"]["generation"] + changed,
            "creationTimestamp": old["metadata"].get("creationTimestamp", "2026-11-18T11:00:00Z"),
        }
        stored = {**body, "metadata": {**metadata, **own}}
        if "status" in old and "status" not in body:
            stored["status"] = old["status"]
        self.objects[found] = stored
        if seen:
            self.cache.handle_event(kind, "MODIFIED", stored)
        return deepcopy(stored)


class Story:
    """One flow, its passes, and a transcript of what they wrote."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.cache = ClusterCache()
        self.api = DictApi(self.cache)
        self.lines: list[str] = []
        self.poller = Poller(changed=lambda _: None)
        self.start("1.1.0", "1.0.0")

    def start(self, *versions: str) -> None:
        """Another process, which remembers nothing, has these versions of the replicator."""
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
        """A user writes the flow."""
        body = document(**spec)
        body["metadata"] |= {"name": name, "annotations": annotations or {}}
        self.api.store(MIRROR_FLOW, body, seen=True)
        self.lines.append(f"-- {name}: {annotations or ''}{spec}")

    def roll_out(self) -> None:
        """Every Deployment has the pods that it wants, and they are ready."""
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
        self.api.store(DEPLOYMENT, {**body, "status": status}, seen=True)
        for found in [one for one in self.api.objects if one[0] == POD.name and one[2].startswith(name)]:
            self.cache.handle_event(POD, "DELETED", self.api.objects.pop(found))
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
            self.api.store(POD, pod, seen=True)

    def end_job(self, outcome: str = "Complete") -> None:
        """The Job ends."""
        for (kind, _, _), body in list(self.api.objects.items()):
            if kind == JOB.name:
                ended = {"type": outcome, "status": "True", "lastTransitionTime": "2026-11-18T12:00:00Z"}
                self.api.store(JOB, {**body, "status": {"conditions": [ended]}}, seen=True)
        self.lines.append(f"-- Job: {outcome}")

    def run(self, *, after_s: float = 0.0, name: str = KEY[1]) -> None:
        """One pass."""
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
        for one in [] if flow is None else flow.get("status", {}).get("conditions", ()):
            self.lines.append(f"  {one['type']}={one['status']} {one['reason']}: {one['message']}")
        for word, seen in ({} if flow is None else flow.get("status", {}).get("connectors", {})).items():
            self.lines.append(f"  {word}: {seen['phase']}, {seen.get('readyReplicas', 0)} ready")
        for word in ("seed", "verify", "restart"):
            if flow is not None and word in flow.get("status", {}):
                self.lines.append(f"  {word}: {flow['status'][word]}")


def begun(**spec: Any) -> Story:
    story = Story()
    story.write(**spec)
    story.run()
    return story


def a_new_flow_is_started_and_then_nothing_is_written() -> Story:
    story = begun()
    story.run()
    story.roll_out()
    story.run()
    story.run(after_s=70)
    return story


def a_changed_setting_rolls_one_connector() -> Story:
    story = begun()
    story.roll_out()
    story.run()
    story.write(connectors={"source": {"config": {"offset.lag.max": "7"}}})
    story.run()
    story.roll_out()
    story.run()
    return story


def scaling_up_and_down_changes_the_form_with_one_pod() -> Story:
    story = begun()
    story.roll_out()
    story.run()
    for count in (3, 1):
        story.write(connectors={"source": {"replicas": count, "tasks": 4}})
        for _ in range(3):
            story.run()
            story.roll_out()
        story.run()
    return story


def a_connector_without_work_is_pruned() -> Story:
    story = begun()
    story.roll_out()
    story.write(heartbeats={"emitTo": []})
    story.run()
    story.run()
    return story


def a_connector_moves_into_another_pod_and_out_again() -> Story:
    story = begun()
    story.roll_out()
    for colocate in (["checkpoint", "heartbeat"], []):
        story.write(connectors={"colocate": colocate})
        for _ in range(3):
            story.run()
            story.roll_out()
    return story


def a_seed_holds_the_source_connector_until_it_ends() -> Story:
    story = begun(seed={"runId": "1"})
    story.run()
    story.roll_out()
    story.run(after_s=5)
    story.end_job()
    story.run(after_s=5)
    story.roll_out()
    story.run(after_s=5)
    return story


def a_seed_without_progress_holds_nothing_after_ten_minutes() -> Story:
    story = begun(seed={"runId": "1"})
    story.run(after_s=5)
    story.run(after_s=700)
    return story


def a_failed_verification_is_reported_and_another_one_runs() -> Story:
    story = begun(verify={"runId": "1"})
    story.run()
    story.end_job("Failed")
    story.run(after_s=5)
    story.write(verify={"runId": "2", "schedule": "0 3 * * *"})
    story.run(after_s=5)
    return story


def a_stopped_flow_has_no_pods() -> Story:
    story = begun()
    story.roll_out()
    for state in ("Paused", "Stopped", "Running"):
        story.write(state=state)
        story.run()
        story.roll_out()
        story.run()
    return story


def an_invalid_spec_changes_nothing() -> Story:
    story = begun()
    story.roll_out()
    story.write(topics={"include": ["a,b"]})
    story.run()
    return story


def an_unknown_version_starts_nothing() -> Story:
    return begun(version="9.9.9")


def a_conflicting_flow_is_stopped_and_then_runs() -> Story:
    story = begun()
    story.write("other")
    story.run(name="other")
    story.run()
    story.cache.handle_event(MIRROR_FLOW, "DELETED", story.api.objects.pop((MIRROR_FLOW.name, *KEY)))
    story.run()
    story.run(name="other")
    return story


def a_foreign_object_of_a_needed_name_is_left_alone() -> Story:
    story = Story()
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "east-to-west-source", "namespace": KEY[0]},
    }
    story.api.store(KINDS["ConfigMap"], body)
    story.write()
    story.run()
    story.run()
    return story


def a_forbidden_namespace_is_reported() -> Story:
    story = Story()
    story.cache.unreadable[KEY[0]] = "pods is forbidden"
    story.write()
    story.run()
    return story


def a_busy_server_ends_the_pass_and_the_next_one_completes_it() -> Story:
    story = Story()
    failing = [True]

    def refuse(body: Object) -> None:
        if body["metadata"]["name"] == "east-to-west-checkpoint" and failing:
            failing.clear()
            raise BusyError("PATCH", "too many requests", status=429)

    story.api.before_apply = refuse
    story.write()
    story.run()
    story.run()
    story.run()
    return story


def a_refused_deployment_stops_no_other_and_is_not_sent_again() -> Story:
    """Until the spec changes."""
    story = Story()

    def refuse(body: Object) -> None:
        if body["kind"] == "Deployment" and body["spec"]["template"]["spec"].get("affinity"):
            raise RejectedError("PATCH", "spec.template.spec.affinity: Required value", status=422)

    story.api.before_apply = refuse
    bad: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    story.write(connectors={"source": {"template": {"affinity": bad}}})
    story.run()
    story.run(after_s=1.0)
    story.roll_out()
    story.run(after_s=400.0)
    story.write()
    story.run(after_s=1.0)
    return story


def an_object_of_another_flow_is_left_to_it() -> Story:
    """Two names can give one object the same name."""
    story = begun(connectors={"source": {"replicas": 2}})
    story.write(
        "east-to-west-source",
        **{side: {"alias": side, "bootstrapServers": [f"{side}:1"]} for side in ("source", "target")},
    )
    for _ in range(2):
        story.run(name="east-to-west-source")
        story.run()
    return story


def a_change_made_during_a_pass_is_corrected_by_the_next() -> Story:
    story = Story()

    def intrude(body: Object) -> None:
        if body["metadata"]["name"] == "east-to-west-heartbeat" and body["kind"] == "Deployment":
            changed = deepcopy(story.api.found(DEPLOYMENT, "east-to-west-source"))
            changed["spec"]["replicas"] = 9
            story.api.store(DEPLOYMENT, changed, seen=True)

    story.api.before_apply = intrude
    story.write()
    story.run()
    story.api.before_apply = lambda _: None
    story.run()
    story.run()
    return story


def a_deleted_object_is_created_again() -> Story:
    story = begun()
    story.run()
    found = (DEPLOYMENT.name, KEY[0], "east-to-west-source")
    story.cache.handle_event(DEPLOYMENT, "DELETED", story.api.objects.pop(found))
    story.run()
    return story


def a_flow_that_a_finalizer_holds_says_so_and_is_left_as_it_is() -> Story:
    story = begun()
    story.roll_out()
    story.run()
    flow = deepcopy(story.api.found(MIRROR_FLOW, KEY[1]))
    flow["metadata"] |= {"deletionTimestamp": "2026-11-18T12:00:00Z", "finalizers": ["example.com/backup"]}
    story.api.store(MIRROR_FLOW, flow, seen=True)
    found = (DEPLOYMENT.name, KEY[0], "east-to-west-source")
    story.cache.handle_event(DEPLOYMENT, "DELETED", story.api.objects.pop(found))
    story.run()
    return story


def a_restart_is_reported_when_the_pods_are_new() -> Story:
    story = begun()
    story.roll_out()
    story.write(restart={"runId": "1"})
    story.run()
    story.roll_out()
    story.run()
    return story


def a_pinned_version_survives_an_upgrade_of_the_operator() -> Story:
    story = begun()
    story.roll_out()
    story.run()
    story.start("1.2.0", "1.1.0")
    story.run()
    story.start("1.3.0", "1.2.0")
    story.run()
    return story


def reconciling_is_paused_by_an_annotation_and_continues() -> Story:
    story = begun()
    story.roll_out()
    pause = {"mirrorflow.io/pause-reconciliation": "true"}
    story.write(annotations=pause, connectors={"source": {"tasks": 2}})
    story.run()
    story.write(connectors={"source": {"tasks": 2}})
    story.run()
    return story


SCENARIOS = (
    a_new_flow_is_started_and_then_nothing_is_written,
    a_changed_setting_rolls_one_connector,
    scaling_up_and_down_changes_the_form_with_one_pod,
    a_connector_without_work_is_pruned,
    a_connector_moves_into_another_pod_and_out_again,
    a_seed_holds_the_source_connector_until_it_ends,
    a_seed_without_progress_holds_nothing_after_ten_minutes,
    a_failed_verification_is_reported_and_another_one_runs,
    a_stopped_flow_has_no_pods,
    an_invalid_spec_changes_nothing,
    an_unknown_version_starts_nothing,
    a_conflicting_flow_is_stopped_and_then_runs,
    a_foreign_object_of_a_needed_name_is_left_alone,
    a_forbidden_namespace_is_reported,
    a_busy_server_ends_the_pass_and_the_next_one_completes_it,
    a_refused_deployment_stops_no_other_and_is_not_sent_again,
    an_object_of_another_flow_is_left_to_it,
    a_change_made_during_a_pass_is_corrected_by_the_next,
    a_deleted_object_is_created_again,
    a_flow_that_a_finalizer_holds_says_so_and_is_left_as_it_is,
    a_restart_is_reported_when_the_pods_are_new,
    a_pinned_version_survives_an_upgrade_of_the_operator,
    reconciling_is_paused_by_an_annotation_and_continues,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_passes_write_what_they_are_recorded_to_write(scenario: Callable[[], Story]) -> None:
    check_golden(GOLDENS / f"{scenario.__name__}.passes.txt", "\n".join(scenario().lines) + "\n")
