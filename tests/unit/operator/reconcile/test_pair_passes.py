"""What each pass over a pair creates, deletes and writes, with an API server that is a dict."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mirrorflow_cli.switchover_job_progress import SwitchoverProgress
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.cluster.cache import ClusterCache, QueueKey
from mirrorflow_operator.cluster.client import (
    CHILDREN,
    EVENT,
    JOB,
    MIRROR_FLOW,
    MIRROR_PAIR,
    POD,
    SWITCHOVER,
    ObjectKind,
)
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.progress_client import PollTarget
from mirrorflow_operator.cluster.progress_poller import Poller
from mirrorflow_operator.errors import ConflictError, NotFoundError, RejectedError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.names import CONNECTOR_LABEL, FLOW_LABEL
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from mirrorflow_operator.reconcile.pair_reconciler import FOLLOW_EVERY_S, WAIT_EVERY_S, PairReconciler
from mirrorflow_operator.settings import Settings
from mirrorflow_operator.status.observation import FRESH_S
from mirrorflow_operator.status.pod_reports import Reading, parse_reading
from tests.unit.operator.pairs import API_VERSION, KEY, NAMESPACE, NOW_S, flow_resource, mirror_pair

Object = dict[str, Any]
KINDS = {kind.name: kind for kind in (*CHILDREN, MIRROR_FLOW, MIRROR_PAIR, SWITCHOVER, POD)}
JOB_NAME = "move-switchover"
CREATED = [
    "create ConfigMap move-switchover",
    "create NetworkPolicy move-switchover",
    "create Job move-switchover",
]


@dataclass
class FakeApi:
    """Stores objects by kind and name.

    *fails_at*: the kind whose creation ends the pass, as a lost connection does. *refuses*: the name of an object whose status is refused.
    """

    cache: ClusterCache
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    version: int = 100
    fails_at: str = ""
    refuses: str = ""

    async def create(self, kind: ObjectKind, namespace: str, body: Object) -> Object:
        await asyncio.sleep(0)
        if kind is EVENT:
            self.written.append(f"event {body['involvedObject']['kind']} {body['reason']}")
            return body
        name = body["metadata"]["name"]
        if kind.name == self.fails_at or (kind.name, name) in self.objects:
            raise ConflictError(f"create {kind.plural}", "it exists")
        self.written.append(f"create {kind.name} {name}")
        return self.store(kind, body)

    async def apply(self, kind: ObjectKind, body: Object, *, subresource: str) -> Object:
        name = body["metadata"]["name"]
        if name == self.refuses:
            raise RejectedError("apply", "denied the request", status=422)
        self.written.append(f"status {kind.name} {name}")
        status = {"status": deepcopy(body["status"])}
        # The response reaches the cache before the watch does.
        return self.store(kind, {**self.objects[kind.name, name], **status}, is_watched=False)

    async def delete(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        dependents_first: bool = False,
    ) -> None:
        if (kind.name, name) not in self.objects:
            raise NotFoundError("delete", "there is none")
        if resource_version not in {"", self.objects[kind.name, name]["metadata"]["resourceVersion"]}:
            raise ConflictError(f"delete {kind.plural}", "it has changed")
        self.written.append(f"delete {kind.name} {name}")
        self.remove(kind, name)

    async def chunks(
        self, kind: ObjectKind, namespace: str, *, labels: str
    ) -> AsyncIterator[tuple[int, list[Object]]]:
        wanted = dict(pair.partition("=")[::2] for pair in labels.split(","))
        yield (
            self.version,
            [
                body
                for (of_kind, _), body in self.objects.items()
                if of_kind == kind.name
                and all(
                    name in body["metadata"].get("labels", {})
                    and value in {"", body["metadata"]["labels"][name]}
                    for name, value in wanted.items()
                )
            ],
        )

    def store(self, kind: ObjectKind, body: Object, *, is_watched: bool = True) -> Object:
        """Stores *body* as a new version. With *is_watched*, a watch reports it where the kind is watched."""
        self.version += 1
        old = self.objects.get((kind.name, body["metadata"]["name"]), {"metadata": {}})["metadata"]
        metadata = {
            "generation": old.get("generation", 0) + is_watched,
            "creationTimestamp": "2026-11-30T00:53:19Z",
            "uid": old.get("uid", f"uid-{self.version}"),
            **body["metadata"],
            "namespace": NAMESPACE,
            "resourceVersion": str(self.version),
        }
        stored = {**deepcopy(body), "metadata": metadata}
        self.objects[kind.name, metadata["name"]] = stored
        if is_watched and kind in {MIRROR_FLOW, MIRROR_PAIR, SWITCHOVER}:
            self.cache.handle_event(kind, "MODIFIED", stored)
        return stored

    def remove(self, kind: ObjectKind, name: str) -> None:
        body = self.objects.pop((kind.name, name))
        if kind in {MIRROR_FLOW, MIRROR_PAIR, SWITCHOVER}:
            self.cache.handle_event(kind, "DELETED", body)


class PairSimulation:
    """The pair east-west with both flows, and the passes over it."""

    def __init__(self) -> None:
        self.cache = ClusterCache()
        self.api = FakeApi(self.cache)
        self.queued: list[QueueKey] = []
        for source, target, state in (("east", "west", "Running"), ("west", "east", "Stopped")):
            resource = flow_resource(source, target, state=state)
            assert resource.flow is not None
            self.api.store(
                MIRROR_FLOW,
                {
                    "metadata": {"name": resource.name},
                    "spec": resource.flow.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
                    "status": resource.status.model_dump(mode="json", by_alias=True, exclude_none=True),
                },
            )
        self.apply_pair()
        metrics = Metrics()
        self.reconciler = PairReconciler(
            settings=Settings(),
            client=self.api,  # type: ignore[arg-type]
            cache=self.cache,
            poller=Poller(changed=lambda _: None),
            events=EventPublisher(client=self.api, metrics=metrics, instance="test"),  # type: ignore[arg-type]
            metrics=metrics,
            changed=self.queued.append,
            wall_clock=lambda: NOW_S,
        )

    def apply_pair(self, **spec_of_pair: Any) -> None:
        spec = mirror_pair(**spec_of_pair).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.api.store(MIRROR_PAIR, {"metadata": {"name": KEY.name}, "spec": spec})

    def request(self, name: str = "move", **fields: Any) -> None:
        spec = {"pair": KEY.name, "to": "west", "type": "Planned", **fields}
        self.api.store(SWITCHOVER, {"apiVersion": API_VERSION, "metadata": {"name": name}, "spec": spec})

    def end_job(self, state: SwitchoverState) -> None:
        """The Job's pod ends with its report."""
        record = SwitchoverRecord(
            id="east-west/move",
            pair="east-west",
            type=SwitchoverType.PLANNED,
            source="east",
            to="west",
            created_ms=1,
            epoch=1,
            state=state,
        )
        progress = SwitchoverProgress(id=record.id, record=record, epoch=1)
        if state is SwitchoverState.DONE:
            progress.active, progress.promoted_by, progress.may_copy_back = "west", record.id, True
        job = self.api.objects["Job", JOB_NAME]
        terminated = {"exitCode": 0, "message": progress.body().decode()}
        labels = {**job["metadata"]["labels"], "batch.kubernetes.io/job-name": JOB_NAME}
        owner = {"kind": "Job", "uid": job["metadata"]["uid"]}
        self.api.store(
            POD,
            {
                "metadata": {"name": "move-pod", "labels": labels, "ownerReferences": [owner]},
                "spec": {"containers": [{"name": "switchover"}]},
                "status": {
                    "phase": "Succeeded",
                    "containerStatuses": [{"name": "switchover", "state": {"terminated": terminated}}],
                },
            },
        )
        complete = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.api.store(JOB, {**job, "status": complete})

    def run(self) -> tuple[list[str], float | None]:
        """Runs one pass; returns what it wrote, and the seconds until the next line."""
        self.api.written.clear()
        again_s = asyncio.run(self.reconciler.reconcile(KEY))
        return list(self.api.written), again_s

    def status(self, kind: str, name: str) -> Object:
        status: Object = self.api.objects[kind, name]["status"]
        return status


@pytest.fixture
def simulation() -> PairSimulation:
    return PairSimulation()


def test_the_files_of_a_switchover_are_created_before_its_job(simulation: PairSimulation):
    simulation.request()

    written, again_s = simulation.run()

    assert written == [
        *CREATED,
        "event Switchover JobCreated",
        "status Switchover move",
        "status MirrorPair east-west",
    ]
    assert FOLLOW_EVERY_S == again_s
    assert [] == simulation.run()[0]


@contextmanager
def _pod_of_flow(body: bytes) -> Iterator[PollTarget]:
    """Serves *body* as the response of a pod to `/progress/partitions`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path.startswith("/progress/partitions?limit=")
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keeps the test's output free of requests."""

    server = ThreadingHTTPServer(("127.77.0.3", HTTP_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield PollTarget(uid="pod", host="127.77.0.3")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_job_of_an_unplanned_switchover_gets_the_source_ends_that_pods_report(
    simulation: PairSimulation,
):
    """A pod that does not respond is left out: its ends are unknown."""
    rows = [{"connector": "s", "topic": "orders", "partition": 0, "sourceEndOffset": 9, "sourceOffset": 4}]
    side = {"reach": "Unreachable", "sinceSeconds": 10}
    body = json.dumps({"connectors": [{"connector": "s", "source": side}], "partitions": rows}).encode()
    silent = PollTarget(uid="silent", host="127.77.0.4")
    simulation.request(type="Unplanned", acceptLoss=True)

    async def reconcile(target: PollTarget) -> None:
        simulation.reconciler.poller.set_targets((NAMESPACE, "east-to-west"), [target, silent])
        await simulation.reconciler.reconcile(KEY)

    with _pod_of_flow(body) as target:
        asyncio.run(reconcile(target))

    request = json.loads(simulation.api.objects["ConfigMap", JOB_NAME]["data"]["switchover.json"])
    assert ("Unplanned", True) == (request["type"], request["acceptLoss"])
    assert {
        "knownUntilMs": int((NOW_S - 40.0) * 1_000),
        "partitions": [["orders", 0, 9, 4]],
    } == request["lastSeen"]


def test_an_unplanned_switchover_ends_the_job_of_the_planned_one_before_it_begins(
    simulation: PairSimulation,
):
    simulation.request()
    simulation.run()
    simulation.request("without-east", type="Unplanned", acceptLoss=True)

    first, _ = simulation.run()
    second, _ = simulation.run()

    assert "delete Job move-switchover" in first
    assert "create Job without-east-switchover" not in first
    assert "create Job without-east-switchover" in second
    assert "create Job move-switchover" not in second


def test_a_pass_that_was_interrupted_is_completed_by_the_next(simulation: PairSimulation):
    simulation.request()
    simulation.api.fails_at = "Job"
    with pytest.raises(ConflictError):
        simulation.run()
    simulation.api.fails_at = ""

    assert simulation.run()[0][:2] == ["create Job move-switchover", "event Switchover JobCreated"]


def test_an_interrupted_pass_is_completed_where_a_webhook_adds_annotations(simulation: PairSimulation):
    simulation.request()
    simulation.api.fails_at = "Job"
    with pytest.raises(ConflictError):
        simulation.run()
    simulation.api.fails_at = ""
    files = simulation.api.objects["ConfigMap", JOB_NAME]
    files["metadata"]["annotations"]["policies.example/checked"] = "true"

    assert "create Job move-switchover" in simulation.run()[0]


def test_a_switchover_whose_objects_are_refused_reports_it_and_the_pair_has_a_status(
    simulation: PairSimulation,
):
    """A quota, a policy or a missing right refuses the Job, or its name is taken."""
    simulation.request()
    simulation.api.fails_at = "Job"

    with pytest.raises(ConflictError):
        simulation.run()

    waiting = simulation.status("Switchover", "move")
    assert waiting["waitsFor"].startswith("Its objects could not be written: Job move-switchover belongs to")
    assert ("Unknown", "Waiting") == reason_of(waiting, "Succeeded")
    assert "CanSwitch" != ready_reason(simulation)


def reason_of(status: Object, kind: str) -> tuple[str, str]:
    (condition,) = (condition for condition in status["conditions"] if condition["type"] == kind)
    return condition["status"], condition["reason"]


def test_a_foreign_object_with_a_required_name_is_not_used(simulation: PairSimulation):
    """The Job would run with the files of that object."""
    simulation.api.store(KINDS["ConfigMap"], {"metadata": {"name": JOB_NAME}, "data": {}})
    simulation.request()

    with pytest.raises(ConflictError, match="delete it, or give the Switchover another name"):
        simulation.run()

    assert ("Job", JOB_NAME) not in simulation.api.objects


@dataclass
class FakePoller:
    """Has the last reading of each pod, by uid."""

    readings: dict[str, Reading]

    def reading(self, uid: str, connector: str | None) -> Reading | None:
        return self.readings.get(uid)


def progress_reading(*, age_s: float = 1.0, lags_unknown: int = 0) -> Reading:
    """Returns what a pod with ten partitions reports that lags behind in none whose lag is known."""
    partitions = {"total": 10, "running": 10, "lagUnknown": lags_unknown}
    body = {
        "version": 1,
        "state": "RUNNING",
        "replicating": "Advancing",
        "lagRecords": 0,
        "lagSeconds": 0.0,
        "partitions": partitions,
    }
    return parse_reading(json.dumps(body).encode(), read_at_s=NOW_S - age_s)


def ready_reason(simulation: PairSimulation) -> str:
    (reason,) = (
        condition["reason"]
        for condition in simulation.status("MirrorPair", KEY.name)["conditions"]
        if condition["type"] == "Ready"
    )
    return str(reason)


@pytest.mark.parametrize(
    ("second", "phase", "reason"),
    [
        (progress_reading(), "Running", "CanSwitch"),
        (progress_reading(lags_unknown=1), "Running", "LagUnknown"),
        (progress_reading(age_s=FRESH_S + 1.0), "Running", "LagUnknown"),
        (None, "Running", "LagUnknown"),
        (None, "Pending", "CanSwitch"),
        (None, "Failed", "CanSwitch"),
    ],
    ids=["known", "one-partition", "old", "not-read", "pending", "failed"],
)
def test_a_pair_is_ready_only_while_the_lag_of_every_partition_is_known(
    simulation: PairSimulation, second: Reading | None, phase: str, reason: str
):
    """A pod reports a lag of 0 s also where it does not know that of some partitions."""
    for name, pod_phase in (("first", "Running"), ("second", phase)):
        labels = {FLOW_LABEL: "east-to-west", CONNECTOR_LABEL: "source"}
        body = {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": name,
                "labels": labels,
                "resourceVersion": "7",
            },
            "spec": {"containers": [{"name": "replicator"}]},
            "status": {"phase": pod_phase},
        }
        simulation.cache.handle_event(POD, "ADDED", body)
    readings = {"first": progress_reading()} | ({} if second is None else {"second": second})
    simulation.reconciler.poller = FakePoller(readings)  # type: ignore[assignment]

    simulation.run()

    assert reason == ready_reason(simulation)
    assert ("lagSeconds" in simulation.status("MirrorPair", KEY.name)["predicted"]) is (reason == "CanSwitch")


JOB_FENCE = {"method": "Hook", "hook": {"job": {"image": "example/gateway:1"}}}
HOOKS = [f"east-west-hook-{kind}" for kind in ("fence-source", "lift-source", "lift-target")]


def test_the_jobs_of_a_hook_are_prepared_while_the_switchover_is_under_way(simulation: PairSimulation):
    """One that was deleted is created again; all are deleted when the switchover has ended."""
    simulation.apply_pair(fence=JOB_FENCE)
    simulation.request()
    simulation.run()

    prepared, again_s = simulation.run()
    unchanged, _ = simulation.run()
    simulation.api.remove(JOB, HOOKS[1])
    repaired, _ = simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    ended, _ = simulation.run()

    assert ([f"create Job {name}" for name in HOOKS], FOLLOW_EVERY_S) == (prepared, again_s)
    assert [] == unchanged
    assert [f"create Job {HOOKS[1]}"] == repaired
    assert sorted(f"delete Job {name}" for name in HOOKS) == sorted(
        line for line in ended if line.startswith("delete")
    )


@pytest.mark.parametrize(
    ("refused", "other"),
    [("later", "status MirrorPair east-west"), ("east-west", "status Switchover later")],
    ids=["of-a-switchover", "of-the-pair"],
)
def test_a_refused_status_delays_no_other_status_and_no_preparation(
    simulation: PairSimulation, refused: str, other: str
):
    """The process waits for the Jobs of its hooks while applications cannot write."""
    simulation.apply_pair(fence=JOB_FENCE)
    simulation.request()
    simulation.run()
    simulation.request("later")
    simulation.apply_pair(fence=JOB_FENCE, readiness={"maxLagSeconds": 9})
    simulation.api.refuses = refused

    with pytest.raises(RejectedError):
        simulation.run()

    assert {other, *(f"create Job {name}" for name in HOOKS)} <= set(simulation.api.written)


def test_a_hook_that_is_changed_meanwhile_changes_no_job(simulation: PairSimulation):
    """What runs is what the pair had when the Switchover began, also after the pair was deleted."""
    simulation.apply_pair(fence=JOB_FENCE)
    simulation.request()
    simulation.run()
    simulation.apply_pair(fence={"method": "Hook", "hook": {"job": {"image": "example/other:1"}}})
    simulation.run()
    simulation.api.remove(MIRROR_PAIR, KEY.name)
    simulation.api.remove(JOB, HOOKS[0])
    simulation.run()

    containers = simulation.api.objects["Job", HOOKS[0]]["spec"]["template"]["spec"]["containers"]
    assert "example/gateway:1" == containers[0]["image"]


def test_the_jobs_of_an_earlier_switchover_are_replaced(simulation: PairSimulation):
    simulation.apply_pair(fence=JOB_FENCE)
    simulation.request()
    simulation.run()
    simulation.run()
    for name in HOOKS:
        job = simulation.api.objects["Job", name]
        job["metadata"]["annotations"] = {"mirrorflow.io/switchover-id": "east-west/earlier"}

    deleted, _ = simulation.run()
    prepared, _ = simulation.run()

    assert [f"delete Job {name}" for name in HOOKS] == deleted
    assert [f"create Job {name}" for name in HOOKS] == prepared


def test_jobs_in_a_changed_or_foreign_config_map_are_not_created(simulation: PairSimulation):
    """Who may write ConfigMaps may not decide what runs with the token of a hook's ServiceAccount."""
    simulation.apply_pair(fence=JOB_FENCE)
    simulation.request()
    simulation.run()
    files = simulation.api.objects["ConfigMap", JOB_NAME]
    text = files["data"]["hook-jobs.json"].replace("example/gateway:1", "example/theirs:1")
    simulation.api.store(KINDS["ConfigMap"], {**files, "data": {**files["data"], "hook-jobs.json": text}})

    with pytest.raises(ConflictError, match="ConfigMap move-switchover is missing, or hook-jobs"):
        simulation.run()

    assert "event Switchover NotPrepared" in simulation.api.written
    assert [] == [name for kind, name in simulation.api.objects if name in HOOKS]


NETWORK_FENCE = {
    "method": "NetworkPolicy",
    "networkPolicy": {
        "brokers": {"east": {"cluster": "east"}, "west": {"cluster": "west"}},
        "ports": [9092],
    },
}
POLICIES = ["east-west-fence-east-to-west", "east-west-fence-west-to-east"]


def put_in_force(simulation: PairSimulation, name: str) -> None:
    policy = deepcopy(simulation.api.objects["NetworkPolicy", name])
    policy["spec"]["podSelector"]["matchExpressions"][0]["operator"] = "DoesNotExist"
    simulation.api.store(KINDS["NetworkPolicy"], policy)


def test_the_policies_of_a_fence_are_prepared_and_stay_after_the_switchover_and_the_pair(
    simulation: PairSimulation,
):
    """One in force keeps applications away from the member that was left."""
    simulation.apply_pair(fence=NETWORK_FENCE)
    simulation.request()
    simulation.run()

    prepared, _ = simulation.run()
    unchanged, _ = simulation.run()
    put_in_force(simulation, POLICIES[0])
    simulation.end_job(SwitchoverState.DONE)
    ended, _ = simulation.run()
    simulation.api.remove(SWITCHOVER, "move")
    simulation.run()
    simulation.api.remove(MIRROR_PAIR, KEY.name)
    simulation.run()

    assert [f"create NetworkPolicy {name}" for name in POLICIES] == prepared
    assert [] == unchanged
    assert [] == [line for line in ended if "NetworkPolicy" in line]
    assert set(POLICIES) <= {name for _, name in simulation.api.objects}


def test_a_policy_that_differs_is_replaced_unless_it_is_in_force(simulation: PairSimulation):
    """The pair was changed between two switchovers. A fence that stands is left to the next process that lifts it."""
    simulation.apply_pair(fence=NETWORK_FENCE)
    simulation.request()
    simulation.run()
    simulation.run()
    for name in POLICIES:
        policy = simulation.api.objects["NetworkPolicy", name]
        policy["metadata"]["annotations"] = {"mirrorflow.io/fence-digest": "of-an-earlier-one"}
    put_in_force(simulation, POLICIES[0])

    deleted, _ = simulation.run()
    created, _ = simulation.run()

    assert [f"delete NetworkPolicy {POLICIES[1]}"] == deleted
    assert [f"create NetworkPolicy {POLICIES[1]}"] == created


def test_an_ended_switchover_is_recorded_and_starts_the_reverse_flow(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    assert not simulation.cache.pairs.is_started((NAMESPACE, "west-to-east"))

    simulation.end_job(SwitchoverState.DONE)
    written, _ = simulation.run()

    assert written == [
        "status Switchover move",
        "event Switchover Done",
        "status MirrorPair east-west",
        "event MirrorPair Promoted",
    ]
    assert "Done" == simulation.status("Switchover", "move")["state"]
    assert simulation.cache.pairs.is_started((NAMESPACE, "west-to-east"))
    assert KEY.name == simulation.cache.pairs.stopping_pair((NAMESPACE, "east-to-west"))
    # Both flows need a pass now: the watch reports nothing that the cache does not have.
    assert {(NAMESPACE, "west-to-east"), (NAMESPACE, "east-to-west")} <= set(simulation.queued)
    assert "west" == simulation.status("MirrorPair", "east-west")["active"]
    assert [] == simulation.run()[0]


def test_a_rollback_starts_no_flow(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.LIFTED)
    simulation.run()

    assert not simulation.cache.pairs.is_started((NAMESPACE, "west-to-east"))
    assert not simulation.cache.pairs.stopping_pair((NAMESPACE, "east-to-west"))
    assert "east" == simulation.status("MirrorPair", "east-west")["active"]


def test_the_job_of_a_deleted_switchover_and_pair_stays_until_it_has_ended(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    simulation.api.remove(SWITCHOVER, "move")
    simulation.api.remove(MIRROR_PAIR, KEY.name)

    meanwhile, again_s = simulation.run()
    simulation.apply_pair()
    simulation.end_job(SwitchoverState.DONE)
    afterwards, _ = simulation.run()

    assert ([], FOLLOW_EVERY_S) == (meanwhile, again_s)
    assert "west" == simulation.status("MirrorPair", "east-west")["active"]
    assert [line for line in afterwards if line.startswith("delete")] == [
        "delete ConfigMap move-switchover",
        "delete NetworkPolicy move-switchover",
        "delete Job move-switchover",
    ]


def test_the_job_of_a_deleted_switchover_stays_while_nothing_has_read_its_report(simulation: PairSimulation):
    """It alone says that applications may have moved. With the Switchover there again, a process reads the journal and reports."""
    simulation.request()
    simulation.run()
    simulation.api.remove(SWITCHOVER, "move")
    simulation.end_job(SwitchoverState.DONE)
    simulation.api.remove(POD, "move-pod")

    kept, _ = simulation.run()
    reason = ready_reason(simulation)
    simulation.request()
    replaced, _ = simulation.run()
    created, _ = simulation.run()

    assert ["status MirrorPair east-west"] == kept
    assert "ActiveUnknown" == reason
    assert "delete Job move-switchover" in replaced
    assert "create Job move-switchover" in created


def test_the_job_of_a_deleted_switchover_stays_until_the_pair_has_recorded_its_report(
    simulation: PairSimulation,
):
    """Its pod has the only report. Without it, the pair would count the member as active that applications have left."""
    simulation.request()
    simulation.run()
    simulation.api.remove(SWITCHOVER, "move")
    simulation.end_job(SwitchoverState.DONE)
    simulation.api.refuses = KEY.name

    with pytest.raises(RejectedError):
        simulation.run()
    refused = [line for line in simulation.api.written if line.startswith("delete")]
    simulation.api.refuses = ""
    recorded, _ = simulation.run()

    assert [] == refused
    assert "delete Job move-switchover" in recorded
    assert "west" == simulation.status("MirrorPair", "east-west")["active"]


def test_the_job_of_a_deleted_switchover_whose_end_is_recorded_is_deleted_without_its_pod(
    simulation: PairSimulation,
):
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    simulation.run()
    simulation.api.remove(POD, "move-pod")
    simulation.api.remove(SWITCHOVER, "move")

    written, _ = simulation.run()

    assert "delete Job move-switchover" in written
    assert "ActiveUnknown" != ready_reason(simulation)


def test_a_job_whose_report_was_lost_is_replaced_by_one_that_reads_the_journal(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    simulation.api.remove(POD, "move-pod")

    first, _ = simulation.run()
    second, _ = simulation.run()

    assert "delete Job move-switchover" in first
    assert "create Job move-switchover" in second


def test_a_copy_of_the_job_of_a_switchover_does_not_replace_it(simulation: PairSimulation):
    """Who debugs a Job may apply a copy of it, with the same labels."""
    simulation.request()
    simulation.run()
    copy = deepcopy(simulation.api.objects["Job", JOB_NAME])
    copy["metadata"] |= {"name": "zz-copy", "uid": "uid-copy"}
    simulation.api.store(JOB, {**copy, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})

    assert [] == simulation.run()[0]


def test_a_switchover_that_waits_for_its_pair_is_not_followed_each_second(simulation: PairSimulation):
    """It may wait for months. The pair, once it exists, triggers the next pass."""
    simulation.api.remove(MIRROR_PAIR, KEY.name)
    simulation.request()
    _, waits_s = simulation.run()
    simulation.apply_pair()
    _, follows_s = simulation.run()

    assert (WAIT_EVERY_S, FOLLOW_EVERY_S) == (waits_s, follows_s)


def test_a_pod_whose_image_cannot_be_pulled_is_reported(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod, job = simulation.api.objects["Pod", "move-pod"], simulation.api.objects["Job", JOB_NAME]
    container = {"name": "switchover", "state": waiting}
    simulation.api.store(POD, {**pod, "status": {"phase": "Pending", "containerStatuses": [container]}})
    simulation.api.store(JOB, {**job, "status": {}})

    simulation.run()

    assert "no such image" in simulation.status("Switchover", "move")["waitsFor"]


def test_flows_of_a_deleted_pair_follow_their_own_specs(simulation: PairSimulation):
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    simulation.run()

    changed = simulation.cache.handle_event(
        MIRROR_PAIR, "DELETED", simulation.api.objects["MirrorPair", KEY.name]
    )

    assert {(NAMESPACE, "west-to-east"), (NAMESPACE, "east-to-west")} <= changed
    assert not simulation.cache.pairs.is_started((NAMESPACE, "west-to-east"))


def test_a_pair_with_a_field_of_a_newer_crd_is_used_without_it(simulation: PairSimulation):
    """After an operator is rolled back, the newer CRD stays, and its defaults are in each pair. No flow may start for that."""
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    simulation.run()
    stored = simulation.api.objects["MirrorPair", KEY.name]
    simulation.api.store(MIRROR_PAIR, {**stored, "spec": {**stored["spec"], "colour": "green"}})
    simulation.run()

    status = simulation.status("MirrorPair", KEY.name)
    (accepted,) = (condition for condition in status["conditions"] if condition["type"] == "Accepted")
    assert ("True", "west") == (accepted["status"], status["active"])
    assert "spec.colour: this operator is older than the field" in accepted["message"]
    assert KEY.name == simulation.cache.pairs.stopping_pair((NAMESPACE, "east-to-west"))


@pytest.mark.parametrize("passes_before", [1, 0], ids=["status-written", "status-not-written"])
def test_a_pair_that_becomes_invalid_keeps_the_decision_which_of_its_flows_runs(
    simulation: PairSimulation, passes_before: int
):
    """A value of a newer CRD, or a rule of this operator that is newer than the pair: no flow may start or stop for that."""
    simulation.request()
    simulation.run()
    simulation.end_job(SwitchoverState.DONE)
    for _ in range(passes_before):
        simulation.run()
    stored = simulation.api.objects["MirrorPair", KEY.name]
    simulation.api.store(MIRROR_PAIR, {**stored, "spec": {**stored["spec"], "fence": {"method": "Rumour"}}})
    simulation.run()

    status = simulation.status("MirrorPair", KEY.name)
    (accepted,) = (condition for condition in status["conditions"] if condition["type"] == "Accepted")
    assert ("False", "InvalidSpec") == (accepted["status"], accepted["reason"])
    assert ("west", "east-west/move", 1) == (status["active"], status["promotedBy"], status["epoch"])
    assert KEY.name == simulation.cache.pairs.stopping_pair((NAMESPACE, "east-to-west"))
    assert simulation.cache.pairs.is_started((NAMESPACE, "west-to-east"))


def test_a_switchover_with_a_field_of_a_newer_crd_is_refused(simulation: PairSimulation):
    """The field may say what must not be done."""
    simulation.request(keepReaders=True)
    simulation.run()

    assert "Refused" == simulation.status("Switchover", "move")["state"]
    assert "spec.keepReaders: it is not a field" in simulation.status("Switchover", "move")["reason"]
