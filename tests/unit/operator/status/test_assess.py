"""Each observation yields a status that the CRD accepts, with conditions that settle.

Observations are drawn at random. `test_statuses` tests the meaning of single situations.
"""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.api.status import (
    CONDITIONS_MAX,
    MESSAGE_MAX,
    ClusterIds,
    Condition,
    ConditionStatus,
    Lag,
    Status,
    parse_status,
)
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.api.workloads import COLOCATABLE, ConnectorKind
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.plan.rollouts import DeploymentCondition, ObservedDeployment
from mirrorflow_operator.reconcile.status_writer import FIGURES_EVERY_S, held_s, status_document
from mirrorflow_operator.status.assess import Assessment, assess
from mirrorflow_operator.status.conditions import IMMEDIATE, ConditionType, Problem, Reason
from mirrorflow_operator.status.observation import (
    AssessmentMemory,
    Observation,
    ObservedConnector,
    ObservedPod,
    PodEvent,
    RefusedObject,
)
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    MissingReference,
    PollFailure,
    Reading,
    ReasonCount,
    Replicating,
    SideReachability,
    SideSummary,
    Summary,
)
from tests.unit.operator.observations import (
    NOW_S,
    REACHED,
    VERSIONS,
    advanced,
    connector,
    deployment,
    mirror_flow,
    observed,
    pod,
    reading,
    resource,
    settled,
    summary,
)

ROOT = Path(__file__).parents[4]
FLOWS = {
    state: mirror_flow(state=state, version=version)
    for state, version in (("Running", ""), ("Paused", ""), ("Stopped", ""), ("Running ", "9.9"))
    for state in [state.strip()]
} | {"Other": mirror_flow(version="9.9"), "Seeding": mirror_flow(seed={"runId": "1"}, verify={"runId": "1"})}

_text = st.text(max_size=3000)
_word = st.sampled_from(["Unreachable", "FlowExists", "RecordTooLarge", "TopicNotCopied", "Nonsense"])
_seconds = st.one_of(st.none(), st.floats(0, 1e9))
_count = st.integers(0, 2**63)
_side = st.builds(
    SideSummary,
    reach=st.sampled_from(SideReachability),
    reason=st.none() | _word,
    since_s=_seconds,
    cluster_id=st.sampled_from([None, "a", "b"]),
)
_summary = st.builds(
    Summary,
    state=st.sampled_from(["RUNNING", "FAILED", "PAUSED", ""]),
    uptime_s=st.floats(0, 1e6),
    partitions=_count,
    partitions_stopped=st.sampled_from([0, 1]),
    partitions_stalled=st.sampled_from([0, 1]),
    lag_records=st.sampled_from([0, 5]),
    lag_s=_seconds,
    records_per_s=st.sampled_from([0.0, 4.0]),
    replicating=st.sampled_from(Replicating),
    reasons=st.lists(st.builds(ReasonCount, _word.filter(bool), _count, _word), max_size=8).map(tuple),
    source=_side,
    target=_side,
    missing=st.one_of(st.none(), st.builds(MissingReference, name=st.just("east"), key=st.just("password"))),
    checkpoints=st.one_of(
        st.none(), st.builds(Checkpoints, groups=_count, failing=st.sampled_from([0, 2]), age_s=_seconds)
    ),
)
_reading = st.one_of(
    st.none(),
    st.builds(Reading, read_at_s=st.just(NOW_S), summary=_summary),
    st.builds(Reading, read_at_s=st.just(NOW_S), failure=st.sampled_from(PollFailure), problem=_text),
)
_event = st.builds(
    PodEvent,
    reason=st.sampled_from(["FailedMount", "BackOff"]),
    message=st.one_of(_text, st.just('secret "east-mirror" not found')),
    last_seen_s=st.floats(NOW_S - 2000, NOW_S + 2000),
)
_pod = st.builds(
    ObservedPod,
    name=st.just("east-to-west-source-x"),
    phase=st.sampled_from(["Pending", "Running", "Failed", "Unknown"]),
    ready=st.booleans(),
    deleting=st.booleans(),
    image=_text,
    created_s=st.floats(NOW_S - 5000, NOW_S),
    started_s=st.one_of(st.none(), st.just(NOW_S - 100)),
    restarts=st.integers(0, 9),
    waiting_reason=st.sampled_from([None, "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"]),
    waiting_message=st.none() | _text,
    terminated_reason=st.sampled_from([None, "OOMKilled", "Error"]),
    terminated_message=st.none() | _text,
    exit_code=st.one_of(st.none(), st.sampled_from([0, 1, 2, 137])),
    unscheduled_message=st.none() | _text,
    events=st.lists(_event, max_size=2).map(tuple),
    reading=_reading,
)
_deployment = st.builds(
    ObservedDeployment,
    name=st.just("east-to-west-source"),
    generation=st.just(3),
    observed_generation=st.integers(0, 3),
    wanted=st.integers(0, 2),
    replicas=st.integers(0, 3),
    updated=st.integers(0, 2),
    ready=st.integers(0, 2),
    conditions=st.lists(
        st.builds(
            DeploymentCondition,
            type=st.sampled_from(["Progressing", "Available", "ReplicaFailure"]),
            status=st.sampled_from(["True", "False"]),
            reason=st.sampled_from(["NewReplicaSetAvailable", "ProgressDeadlineExceeded", "FailedCreate"]),
            message=_text,
        ),
        max_size=3,
    ).map(tuple),
    image=_text,
    selector=_text,
)
_connectors = st.tuples(
    *(
        st.builds(
            ObservedConnector,
            kind=st.just(kind),
            deployment=st.one_of(st.none(), _deployment),
            pods=st.lists(_pod, max_size=2).map(tuple),
        )
        for kind in ConnectorKind
    )
).flatmap(lambda connectors: st.sampled_from([connectors, connectors[:1], ()]))


_refused = st.builds(
    RefusedObject,
    name=st.just("Deployment east-to-west-source"),
    part=st.sampled_from([None, "source", "seed"]),
    message=st.just("exceeded quota"),
    is_taken=st.booleans(),
    is_final=st.booleans(),
    is_absent=st.booleans(),
)


@st.composite
def _observations(draw: st.DrawFn) -> Observation:
    flow = draw(st.sampled_from([None, *FLOWS.values()]))
    flow_resource = resource(flow, generation=draw(st.integers(1, 3)))
    if flow is None:
        error = FieldError(path="spec.topics", message=draw(_text))
        flow_resource = replace(flow_resource, flow=None, errors=(error,))
    conflict = draw(st.sampled_from([None, None, Problem(Reason.LOOP_FOUND, "Flows a and b make a loop.")]))
    return Observation(
        resource=flow_resource,
        admission=admit(flow_resource, versions=VERSIONS, conflict=conflict),
        now_s=NOW_S,
        connectors=draw(_connectors),
        refused=draw(st.lists(_refused, max_size=2).map(tuple)),
    )


def _checked(before: Status, assessment: Assessment, now_s: float) -> Status:
    """Checks what must hold for every status, and returns the status."""
    status = assessment.status
    # Pydantic checks the bounds and patterns of the CRD, which is generated from the same types.
    assert status == parse_status(status_document(status)) == Status.model_validate(status_document(status))
    kinds = [condition.type for condition in status.conditions]
    assert kinds == [kind.value for kind in ConditionType if kind.value in kinds]
    assert len(kinds) <= CONDITIONS_MAX
    known = {condition.type: condition for condition in before.conditions}
    for condition in status.conditions:
        assert condition.message
        assert len(condition.message) <= MESSAGE_MAX
        assert condition.message.isprintable()
        assert condition.reason in {reason.value for reason in Reason}
        assert condition.observed_generation <= status.observed_generation
        previous = known.get(condition.type)
        if previous is not None and previous.status is condition.status:
            assert previous.last_transition_time == condition.last_transition_time
        else:
            assert timestamp(now_s) == condition.last_transition_time
    return status


@given(
    st.lists(
        st.tuples(_observations(), st.sampled_from([0.0, 5.0, 30.0, 70.0, -40.0])), min_size=1, max_size=6
    )
)
def test_each_observation_gives_a_status_that_the_crd_accepts(
    steps: list[tuple[Observation, float]],
) -> None:
    """The observations follow each other, and the clock may be set back. Without a change, the status settles."""
    status, memory, before = Status(), AssessmentMemory(), steps[0][0]
    for observation, after_s in steps:
        current = advanced(observation, before, status, memory, after_s=after_s)
        assessment = assess(current)
        assert assessment == assess(current)
        status, memory, before = _checked(status, assessment, current.now_s), assessment.memory, current
    for _ in range(12):
        current = advanced(steps[-1][0], before, status, memory, after_s=30.0)
        assessment = assess(current)
        last, status, memory, before = status, assessment.status, assessment.memory, current
    assert last == status
    assert assessment.again_after_s is None


def _condition(status: Status, kind: str) -> Condition:
    return next(condition for condition in status.conditions if condition.type == kind)


def _ready(status: Status) -> Condition:
    return _condition(status, "Ready")


HEALTHY = observed()
STUCK = observed({"reading": reading(replicating=Replicating.STUCK, lag_records=9, lag_s=90.0)})
UNREACHABLE = observed({"reading": Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)})


class _AssessedFlow:
    """A flow that is assessed repeatedly. It records each change of Ready with its time."""

    def __init__(self) -> None:
        self.status, self.memory, self.last = Status(), AssessmentMemory(), HEALTHY
        self.ready_changes: list[tuple[float, str]] = []

    def assess(self, observation: Observation, after_s: float) -> Condition:
        current = advanced(observation, self.last, self.status, self.memory, after_s=after_s)
        assessment = assess(current)
        self.status, self.memory, self.last = assessment.status, assessment.memory, current
        ready = _ready(self.status)
        if not self.ready_changes or self.ready_changes[-1][1] != ready.status.value:
            self.ready_changes.append((current.now_s, ready.status.value))
        return ready


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([HEALTHY, STUCK, UNREACHABLE]), st.sampled_from([1.0, 10.0, 29.0, 31.0, 61.0])
        ),
        max_size=60,
    ),
    st.sets(st.integers(0, 59), max_size=5),
)
def test_ready_never_changes_twice_within_a_minute(
    steps: list[tuple[Observation, float]], restarts: set[int]
) -> None:
    """Findings change quickly, and the operator restarts. Only a change from Unknown may be sooner."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    for number, (observation, after_s) in enumerate(steps):
        if number in restarts:
            flow.memory = AssessmentMemory()
        flow.assess(observation, after_s)

    changes = [changed_s for changed_s, _ in flow.ready_changes]
    known = [changed_s for changed_s, status in flow.ready_changes if status != "Unknown"]
    assert all(later - earlier >= 60 for earlier, later in pairwise(known))
    assert len(changes) <= 1 + 2 * len(known)


def test_ready_becomes_false_after_a_minute_with_the_reason() -> None:
    """A flow whose records do not advance while its source has data is not Ready."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    conditions = [flow.assess(STUCK, 20) for _ in range(5)]

    assert ["True", "True", "True", "False", "False"] == [condition.status.value for condition in conditions]
    assert ("Stuck", timestamp(flow.last.now_s - 20)) == (
        conditions[-1].reason,
        conditions[-1].last_transition_time,
    )


def test_a_recovered_flow_is_ready_after_a_minute() -> None:
    """The first good reading is not enough."""
    flow = _AssessedFlow()
    flow.assess(STUCK, 0)

    assert ["False", "False", "True"] == [flow.assess(HEALTHY, 30).status.value for _ in range(3)]


def test_unreachable_pods_make_ready_unknown_instead_of_false() -> None:
    """They may still be copying."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    conditions = [flow.assess(UNREACHABLE, 30) for _ in range(4)]

    assert ["True", "True", "Unknown", "Unknown"] == [condition.status.value for condition in conditions]
    assert ("ProgressUnknown", None) == (conditions[-1].reason, flow.status.lag)


def test_a_restarted_operator_keeps_conditions_for_a_minute() -> None:
    """It has not polled any pod yet."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    before = flow.status
    not_polled = observed({"reading": None})
    flow.memory = AssessmentMemory()

    flow.assess(not_polled, 5)

    assert before == flow.status
    assert "True" == flow.assess(not_polled, 30).status.value
    assert "Unknown" == flow.assess(not_polled, 60).status.value


def test_failures_of_a_young_connector_are_reported_as_waiting() -> None:
    """A checkpoint connector waits for the topic of the source connector. This must not delay Ready by a minute."""
    early: dict[str, Any] = {"uptime_s": 9.0, "state": "FAILED"}
    conditions = [
        _ready(assess(observed({"reading": reading(replicating=Replicating.STUCK, **early)})).status),
        _ready(
            assess(
                observed(
                    connectors=(
                        connector(),
                        connector(ConnectorKind.CHECKPOINT, pods=(pod(reading=reading(**early)),)),
                    )
                )
            ).status
        ),
    ]

    assert [("Unknown", "Waiting"), ("True", "Replicating")] == [
        (condition.status.value, condition.reason) for condition in conditions
    ]


@pytest.mark.parametrize(("state", "reason"), [("Paused", "Pausing"), ("Stopped", "Stopped")])
def test_changes_by_a_user_show_immediately(state: str, reason: str) -> None:
    """Reverting the change shows immediately too."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    halted = observed(flow=mirror_flow(state=state))
    if state == "Stopped":
        halted = replace(
            halted,
            connectors=tuple(
                replace(observed_connector, pods=()) for observed_connector in halted.connectors
            ),
        )

    assert ("False", reason) == (flow.assess(halted, 1).status.value, _ready(flow.status).reason)
    assert "True" == flow.assess(HEALTHY, 1).status.value


def _changed(generation: int, *new: Reading | None) -> Observation:
    """Returns the observation after a change of the spec.

    The source connector's pod is being replaced, or was replaced by one with the reading *new*.
    """
    rolls = deployment(
        generation=generation, observed_generation=generation, replicas=1 if new else 2, conditions=()
    )
    old = pod(name="old", template_hash="old", deleting=bool(new))
    pods = (
        old,
        *(pod(name="new", template_hash="new", created_s=NOW_S, reading=new_reading) for new_reading in new),
    )
    return observed(
        resource=resource(generation=generation),
        connectors=(
            connector(deployment=rolls, pods=pods),
            connector(ConnectorKind.CHECKPOINT),
            connector(ConnectorKind.HEARTBEAT),
        ),
    )


NO_TOPIC = reading(partitions=0, reasons=(ReasonCount("NothingMatches", 1, "no topic ordrs"),), uptime_s=5.0)
NOT_YET = reading(partitions=0, replicating=Replicating.WAITING, uptime_s=2.0)
NO_LOGIN = reading(
    partitions=0,
    replicating=Replicating.WAITING,
    source=SideSummary(reach=SideReachability.UNREACHABLE, reason="AuthenticationFailed", since_s=11.0),
)


@pytest.mark.parametrize(
    ("bad", "reason"), [(NO_TOPIC, "NothingMatches"), (NO_LOGIN, "SourceUnreachable")], ids=["topic", "login"]
)
def test_ready_follows_the_pods_of_a_new_spec_immediately(bad: Reading, reason: str) -> None:
    """Until the pods report, Ready keeps its generation and Reconciling is True.

    The same holds when the spec is reverted.
    """
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    for generation, reports, status in ((2, bad, "False"), (3, reading(), "True")):
        before = _ready(flow.status)
        for observation in (_changed(generation), _changed(generation, NOT_YET)):
            kept, progress = flow.assess(observation, 1), _condition(flow.status, "Reconciling")
            assert (before.status, generation - 1) == (kept.status, kept.observed_generation)
            assert ("True", generation) == (progress.status.value, progress.observed_generation)
        ready = flow.assess(_changed(generation, reports), 5)

        assert (status, generation) == (ready.status.value, ready.observed_generation)
        assert ready.reason == (reason if status == "False" else "Replicating")


QUOTA = RefusedObject(name="Deployment east-to-west-source", part="source", message="exceeded quota")


def test_conditions_from_earlier_pods_keep_the_generation_until_a_spec_is_applied() -> None:
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    refused = replace(HEALTHY, resource=resource(generation=2), refused=(QUOTA,))
    ready = flow.assess(refused, 1)

    assert ("True", 1) == (ready.status.value, ready.observed_generation)
    assert 1 == _condition(flow.status, "SourceReachable").observed_generation
    assert 2 == _condition(flow.status, "Accepted").observed_generation


def test_a_flow_refused_by_earlier_pods_is_accepted_after_new_pods_report() -> None:
    flow = _AssessedFlow()
    taken = reading(replicating=Replicating.STUCK, reasons=(ReasonCount("FlowExists", 1),))
    flow.assess(observed({"reading": taken}), 0)
    rolling = _changed(2)
    old = replace(rolling.connectors[0].pods[0], reading=taken)
    flow.assess(
        replace(rolling, connectors=(replace(rolling.connectors[0], pods=(old,)), *rolling.connectors[1:])), 1
    )
    kept, stalled = _condition(flow.status, "Accepted"), _condition(flow.status, "Stalled")
    flow.assess(_changed(2, reading()), 5)
    accepted = _condition(flow.status, "Accepted")

    assert (("False", 1), "False") == ((kept.status.value, kept.observed_generation), stalled.status.value)
    assert ("True", 2) == (accepted.status.value, accepted.observed_generation)


def test_a_flow_with_an_unreachable_cluster_has_no_lag() -> None:
    unreachable = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=100.0)
    for side in ({"source": unreachable}, {"target": unreachable}):
        flow = _AssessedFlow()
        flow.assess(HEALTHY, 0)
        assert Lag.NONE is flow.status.lag
        flow.assess(observed({"reading": Reading(read_at_s=NOW_S, summary=summary(**side))}), 5)

        assert flow.status.lag is None


def test_a_cluster_that_was_never_reached_is_not_reported_as_reachable() -> None:
    """The first attempts have failed, but only for a short time."""
    trying = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=3.0)
    first = connector(pods=(pod(reading=reading(source=trying)),))
    status = assess(observed(connectors=(first,))).status

    assert "Unknown" == _condition(status, "SourceReachable").status.value


def test_a_pod_of_an_earlier_spec_does_not_set_cluster_ids() -> None:
    """The address was changed, and an earlier pod still reports the cluster at the old address."""
    status = Status(observed_generation=1, cluster_ids=ClusterIds(source="east-id", target="west-id"))
    replaced = deployment(generation=2, observed_generation=2, replicas=2, updated=1)
    rolling = tuple(connector(kind, deployment=replace(replaced, name=kind.value)) for kind in COLOCATABLE)
    changed = observed(resource=resource(status=status, generation=2), connectors=rolling)

    while_it_rolls = assess(changed).status
    moved = replace(REACHED, cluster_id="south-id")
    whole = tuple(connector(kind, pods=(pod(reading=reading(target=moved)),)) for kind in COLOCATABLE)
    after = assess(observed(resource=resource(status=while_it_rolls, generation=2), connectors=whole)).status

    assert while_it_rolls.cluster_ids is None
    assert after.cluster_ids == ClusterIds(source="east-id", target="south-id")
    assert "ClusterChanged" not in {condition.reason for condition in after.conditions}


def test_a_replaced_cluster_is_accepted_after_the_spec_is_changed() -> None:
    status = Status(observed_generation=1, cluster_ids=ClusterIds(source="east-id", target="the-one-before"))
    before = assess(observed(resource=resource(status=status))).status
    after = assess(observed(resource=resource(status=before, generation=2))).status

    assert "ClusterChanged" in {condition.reason for condition in before.conditions}
    assert before.cluster_ids == status.cluster_ids
    assert "ClusterChanged" not in {condition.reason for condition in after.conditions}
    assert after.cluster_ids == ClusterIds(source="east-id", target="west-id")


def test_assess_returns_when_to_assess_again() -> None:
    """Otherwise no event would cause the next assessment."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    observation = advanced(STUCK, flow.last, flow.status, flow.memory, after_s=1)
    first = assess(observation)
    assert 60 == first.again_after_s
    again = advanced(STUCK, observation, first.status, first.memory, after_s=45)

    assert 15 == assess(again).again_after_s


def test_the_settle_time_is_a_setting() -> None:
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    quick = replace(STUCK, settle_s=2.0)

    assert ["True", "False"] == [flow.assess(quick, 2).status.value for _ in range(2)]


def test_the_first_status_has_the_generation_and_ready_unknown() -> None:
    """kstatus treats a resource without a generation and conditions as reconciled."""
    new = deployment(observed_generation=0, replicas=0, updated=0, ready=0, conditions=())
    observation = observed(connectors=(connector(deployment=new, pods=()),), resource=resource(generation=7))
    status = assess(observation).status
    statuses = {condition.type: condition.status.value for condition in status.conditions}

    assert 7 == status.observed_generation
    assert ("Unknown", "True", "False") == (statuses["Ready"], statuses["Reconciling"], statuses["Stalled"])


def test_a_new_spec_clears_the_cluster_ids_until_pods_report_them() -> None:
    """The new spec may name different clusters."""
    status = settled(HEALTHY)
    silent = observed({"reading": None}, resource=resource(generation=2, status=status), connectors=())

    assert status.cluster_ids is not None
    assert assess(silent).status.cluster_ids is None


def test_figures_are_written_once_a_minute_and_other_changes_immediately() -> None:
    """With traffic, the lag changes continuously."""
    old = settled(HEALTHY)
    busy = old.model_copy(update={"lag": Lag.UNDER_A_MINUTE})
    worse = settled(STUCK)

    assert held_s(old, old, last_write_s=None, now_s=NOW_S) != 0
    assert held_s(old, busy, last_write_s=None, now_s=NOW_S) == 0
    assert held_s(old, busy, last_write_s=NOW_S - FIGURES_EVERY_S + 1, now_s=NOW_S) != 0
    assert held_s(old, busy, last_write_s=NOW_S - FIGURES_EVERY_S, now_s=NOW_S) == 0
    assert held_s(old, worse, last_write_s=NOW_S - 1, now_s=NOW_S) == 0
    assert 20 == held_s(old, busy, last_write_s=NOW_S - 40, now_s=NOW_S)
    assert held_s(old, busy, last_write_s=NOW_S + 10_000, now_s=NOW_S) == 0


def test_traffic_causes_at_most_one_write_a_minute() -> None:
    """The flow is polled every 30 s for an hour, with records at every second poll."""
    flow = _AssessedFlow()
    flow.assess(HEALTHY, 0)
    written, last_write_s, writes = flow.status, flow.last.now_s, 0
    busy = observed(
        {"reading": reading(replicating=Replicating.ADVANCING, records_per_s=1.0, lag_records=3, lag_s=12.0)}
    )
    for number in range(120):
        flow.assess(busy if number % 2 else HEALTHY, 30)
        now_s = flow.last.now_s
        if held_s(written, flow.status, last_write_s=last_write_s, now_s=now_s) == 0:
            written, last_write_s, writes = flow.status, now_s, writes + 1

    assert 0 < writes <= 60


def test_a_status_of_a_different_release_is_read_field_by_field() -> None:
    """An unknown field must not cause the loss of the pinned version."""
    status = parse_status(
        {
            "version": "1.0.0",
            "lag": "a while",
            "moods": [1],
            "conditions": [{"type": "Ready"}, 3],
            "seed": None,
        }
    )

    assert Status(version="1.0.0") == status
    assert Status() == parse_status(None) == parse_status("no")


@given(st.floats(0, 4e9))
def test_a_timestamp_is_unchanged_by_a_round_trip(time_s: float) -> None:
    """Timestamps have a precision of one second."""
    assert int(time_s) == parse_timestamp(timestamp(time_s))
    assert parse_timestamp("yesterday") is None


def test_each_condition_and_reason_is_documented() -> None:
    """docs/conditions.md explains each of them and what to do."""
    text = (ROOT / "docs" / "conditions.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))

    assert {reason.value for reason in Reason} <= rows
    assert {kind.value for kind in ConditionType} <= set(re.findall(r"^## (\w+)", text, re.MULTILINE))


def test_the_crd_accepts_each_reason() -> None:
    """Each type and reason of a condition matches the pattern in the schema."""
    crd: dict[str, Any] = yaml.safe_load((ROOT / "crds" / "mirrorflows.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    pattern = schema["properties"]["conditions"]["items"]["properties"]["reason"]["pattern"]

    assert all(re.search(pattern, name.value) for name in (*Reason, *ConditionType))
    assert all(isinstance(reason, Reason) for reason in IMMEDIATE)
    assert {status.value for status in ConditionStatus} == {"True", "False", "Unknown"}
