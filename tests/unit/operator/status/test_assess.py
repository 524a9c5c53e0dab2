"""Every observation gives a status that the CRD accepts, whose conditions settle.

The states of a hundred minutes are drawn at random; `test_statuses` says what single situations mean.
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
    seconds,
    timestamp,
)
from mirrorflow_operator.api.workloads import ConnectorKind
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
_word = st.sampled_from(["", "Unreachable", "FlowExists", "RecordTooLarge", "TopicNotCopied", "Nonsense"])
_seconds = st.one_of(st.none(), st.floats(0, 1e9))
_count = st.integers(0, 2**63)
_side = st.builds(
    SideSummary,
    reach=st.sampled_from(SideReachability),
    reason=_word,
    since_s=_seconds,
    cluster_id=st.sampled_from(["", "a", "b"]),
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
    waiting_reason=st.sampled_from(["", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"]),
    waiting_message=_text,
    terminated_reason=st.sampled_from(["", "OOMKilled", "Error"]),
    terminated_message=_text,
    exit_code=st.one_of(st.none(), st.sampled_from([0, 1, 2, 137])),
    unscheduled_message=st.one_of(st.just(""), _text),
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
).flatmap(lambda three: st.sampled_from([three, three[:1], ()]))


_refused = st.builds(
    RefusedObject,
    name=st.just("Deployment east-to-west-source"),
    part=st.sampled_from(["", "source", "seed"]),
    message=st.just("exceeded quota"),
    is_taken=st.booleans(),
    is_final=st.booleans(),
    is_absent=st.booleans(),
)


@st.composite
def _observations(draw: st.DrawFn) -> Observation:
    flow = draw(st.sampled_from([None, *FLOWS.values()]))
    found = resource(flow, generation=draw(st.integers(1, 3)))
    if flow is None:
        slip = FieldError(path="spec.topics", message=draw(_text))
        found = replace(found, flow=None, errors=(slip,))
    conflict = draw(st.sampled_from([None, None, Problem(Reason.LOOP_FOUND, "Flows a and b make a loop.")]))
    return Observation(
        resource=found,
        admission=admit(found, versions=VERSIONS, conflict=conflict),
        now_s=NOW_S,
        connectors=draw(_connectors),
        refused=draw(st.lists(_refused, max_size=2).map(tuple)),
    )


def _checked(before: Status, assessment: Assessment, now_s: float) -> Status:
    """What must hold for every status, whatever was seen."""
    status = assessment.status
    # Pydantic checks the bounds and patterns of the CRD, which is made of the same types.
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
        told = known.get(condition.type)
        if told is not None and told.status is condition.status:
            assert told.last_transition_time == condition.last_transition_time
        else:
            assert timestamp(now_s) == condition.last_transition_time
    return status


@given(
    st.lists(
        st.tuples(_observations(), st.sampled_from([0.0, 5.0, 30.0, 70.0, -40.0])), min_size=1, max_size=6
    )
)
def test_every_observation_gives_a_status_that_the_crd_accepts(
    steps: list[tuple[Observation, float]],
) -> None:
    """One after the other, and with a clock that is set back; and once nothing changes any more, neither does the status."""
    status, memory, before = Status(), AssessmentMemory(), steps[0][0]
    for observation, after_s in steps:
        seen = advanced(observation, before, status, memory, after_s=after_s)
        assessment = assess(seen)
        assert assessment == assess(seen)
        status, memory, before = _checked(status, assessment, seen.now_s), assessment.memory, seen
    for _ in range(12):
        seen = advanced(steps[-1][0], before, status, memory, after_s=30.0)
        assessment = assess(seen)
        last, status, memory, before = status, assessment.status, assessment.memory, seen
    assert last == status
    assert assessment.again_after_s is None


def _condition(status: Status, kind: str) -> Condition:
    return next(condition for condition in status.conditions if condition.type == kind)


def _ready(status: Status) -> Condition:
    return _condition(status, "Ready")


WELL = observed()
STUCK = observed({"reading": reading(replicating=Replicating.STUCK, lag_records=9, lag_s=90.0)})
SILENT = observed({"reading": Reading(read_at_s=NOW_S, failure=PollFailure.UNREACHABLE)})


class _Life:
    """A flow that is observed repeatedly, and the values that Ready had."""

    def __init__(self) -> None:
        self.status, self.memory, self.last = Status(), AssessmentMemory(), WELL
        self.told: list[tuple[float, str]] = []

    def see(self, observation: Observation, after_s: float) -> Condition:
        seen = advanced(observation, self.last, self.status, self.memory, after_s=after_s)
        assessment = assess(seen)
        self.status, self.memory, self.last = assessment.status, assessment.memory, seen
        ready = _ready(self.status)
        if not self.told or self.told[-1][1] != ready.status.value:
            self.told.append((seen.now_s, ready.status.value))
        return ready


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(
        st.tuples(st.sampled_from([WELL, STUCK, SILENT]), st.sampled_from([1.0, 10.0, 29.0, 31.0, 61.0])),
        max_size=60,
    ),
    st.sets(st.integers(0, 59), max_size=5),
)
def test_ready_never_changes_twice_within_a_minute(
    steps: list[tuple[Observation, float]], restarts: set[int]
) -> None:
    """However quickly findings change, and even if the operator restarts in between, once Ready has a value."""
    life = _Life()
    life.see(WELL, 0)
    for at, (observation, after_s) in enumerate(steps):
        if at in restarts:
            life.memory = AssessmentMemory()
        life.see(observation, after_s)

    changes = [at for at, _ in life.told]
    known = [at for at, status in life.told if status != "Unknown"]
    assert all(later - earlier >= 60 for earlier, later in pairwise(known))
    assert len(changes) <= 1 + 2 * len(known)


def test_ready_stays_true_for_a_minute_and_then_has_the_reason() -> None:
    """A flow whose records do not advance while its source has data is not Ready."""
    life = _Life()
    life.see(WELL, 0)
    told = [life.see(STUCK, 20) for _ in range(5)]

    assert ["True", "True", "True", "False", "False"] == [one.status.value for one in told]
    assert ("Stuck", timestamp(life.last.now_s - 20)) == (told[-1].reason, told[-1].last_transition_time)


def test_a_recovered_flow_is_ready_after_a_minute() -> None:
    """Not with the first good answer."""
    life = _Life()
    life.see(STUCK, 0)

    assert ["False", "False", "True"] == [life.see(WELL, 30).status.value for _ in range(3)]


def test_pods_that_cannot_be_reached_are_unknown_and_not_false() -> None:
    """They may still copy."""
    life = _Life()
    life.see(WELL, 0)
    told = [life.see(SILENT, 30) for _ in range(4)]

    assert ["True", "True", "Unknown", "Unknown"] == [one.status.value for one in told]
    assert ("ProgressUnknown", None) == (told[-1].reason, life.status.lag)


def test_a_restarted_operator_keeps_conditions_for_a_minute() -> None:
    """It has asked no pod yet, and must neither say that all is lost nor for ever that all is well."""
    life = _Life()
    life.see(WELL, 0)
    before = life.status
    unasked = observed({"reading": None})
    life.memory = AssessmentMemory()

    life.see(unasked, 5)

    assert before == life.status
    assert "True" == life.see(unasked, 30).status.value
    assert "Unknown" == life.see(unasked, 60).status.value


def test_failures_of_a_young_connector_are_reported_as_waiting() -> None:
    """A checkpoint connector waits for the source connector's topic; this must not delay Ready by a minute."""
    early: dict[str, Any] = {"uptime_s": 9.0, "state": "FAILED"}
    told = [
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
        (one.status.value, one.reason) for one in told
    ]


@pytest.mark.parametrize(("state", "reason"), [("Paused", "Pausing"), ("Stopped", "Stopped")])
def test_changes_by_a_user_show_at_once(state: str, reason: str) -> None:
    """Reverting the change shows at once, too."""
    life = _Life()
    life.see(WELL, 0)
    halted = observed(flow=mirror_flow(state=state))
    if state == "Stopped":
        halted = replace(halted, connectors=tuple(replace(one, pods=()) for one in halted.connectors))

    assert ("False", reason) == (life.see(halted, 1).status.value, _ready(life.status).reason)
    assert "True" == life.see(WELL, 1).status.value


def _changed(generation: int, *new: Reading | None) -> Observation:
    """The spec has changed and the source connector's pod is being replaced, or has been by one that reports *new*."""
    rolls = deployment(
        generation=generation, observed_generation=generation, replicas=1 if new else 2, conditions=()
    )
    old = pod(name="old", template_hash="old", deleting=bool(new))
    pods = (old, *(pod(name="new", template_hash="new", created_s=NOW_S, reading=one) for one in new))
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
def test_a_new_spec_is_judged_by_its_own_pods_and_at_once(bad: Reading, reason: str) -> None:
    """Until they report, Ready keeps the generation that it describes, and Reconciling is True; on the way back, too."""
    life = _Life()
    life.see(WELL, 0)
    for generation, reports, status in ((2, bad, "False"), (3, reading(), "True")):
        before = _ready(life.status)
        for seen in (_changed(generation), _changed(generation, NOT_YET)):
            kept, progress = life.see(seen, 1), _condition(life.status, "Reconciling")
            assert (before.status, generation - 1) == (kept.status, kept.observed_generation)
            assert ("True", generation) == (progress.status.value, progress.observed_generation)
        told = life.see(_changed(generation, reports), 5)

        assert (status, generation) == (told.status.value, told.observed_generation)
        assert told.reason == (reason if status == "False" else "Replicating")


QUOTA = RefusedObject(name="Deployment east-to-west-source", part="source", message="exceeded quota")


def test_nothing_that_earlier_pods_report_has_the_generation_of_a_spec_that_is_not_applied() -> None:
    life = _Life()
    life.see(WELL, 0)
    refused = replace(WELL, resource=resource(generation=2), refused=(QUOTA,))
    told = life.see(refused, 1)

    assert ("True", 1) == (told.status.value, told.observed_generation)
    assert 1 == _condition(life.status, "SourceReachable").observed_generation
    assert 2 == _condition(life.status, "Accepted").observed_generation


def test_a_spec_that_earlier_pods_refused_is_accepted_once_new_ones_report() -> None:
    life = _Life()
    taken = reading(replicating=Replicating.STUCK, reasons=(ReasonCount("FlowExists", 1),))
    life.see(observed({"reading": taken}), 0)
    rolling = _changed(2)
    old = replace(rolling.connectors[0].pods[0], reading=taken)
    life.see(
        replace(rolling, connectors=(replace(rolling.connectors[0], pods=(old,)), *rolling.connectors[1:])), 1
    )
    kept, stalled = _condition(life.status, "Accepted"), _condition(life.status, "Stalled")
    life.see(_changed(2, reading()), 5)
    told = _condition(life.status, "Accepted")

    assert (("False", 1), "False") == ((kept.status.value, kept.observed_generation), stalled.status.value)
    assert ("True", 2) == (told.status.value, told.observed_generation)


def test_no_lag_is_shown_for_a_flow_that_has_not_reached_a_cluster() -> None:
    away = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=100.0)
    for side in ({"source": away}, {"target": away}):
        life = _Life()
        life.see(WELL, 0)
        assert Lag.NONE is life.status.lag
        life.see(observed({"reading": Reading(read_at_s=NOW_S, summary=summary(**side))}), 5)

        assert life.status.lag is None


def test_a_cluster_that_was_never_reached_is_not_reported_as_reachable() -> None:
    """Its first attempts have failed, but not for long enough to be sure."""
    trying = SideSummary(reach=SideReachability.UNREACHABLE, reason="Unreachable", since_s=3.0)
    first = connector(pods=(pod(reading=reading(source=trying)),))
    status = assess(observed(connectors=(first,))).status

    assert "Unknown" == _condition(status, "SourceReachable").status.value


def test_a_pod_of_an_earlier_spec_does_not_set_cluster_ids() -> None:
    """The address was changed: an earlier pod still reports the cluster behind the old one."""
    status = Status(observed_generation=1, cluster_ids=ClusterIds(source="east-id", target="west-id"))
    replaced = deployment(generation=2, observed_generation=2, replicas=2, updated=1)
    rolling = tuple(connector(kind, deployment=replace(replaced, name=kind.value)) for kind in ConnectorKind)
    changed = observed(resource=resource(status=status, generation=2), connectors=rolling)

    while_it_rolls = assess(changed).status
    moved = replace(REACHED, cluster_id="south-id")
    whole = tuple(connector(kind, pods=(pod(reading=reading(target=moved)),)) for kind in ConnectorKind)
    after = assess(observed(resource=resource(status=while_it_rolls, generation=2), connectors=whole)).status

    assert while_it_rolls.cluster_ids is None
    assert after.cluster_ids == ClusterIds(source="east-id", target="south-id")
    assert "ClusterChanged" not in {one.reason for one in after.conditions}


def test_a_replaced_cluster_is_accepted_once_the_spec_is_written_again() -> None:
    status = Status(observed_generation=1, cluster_ids=ClusterIds(source="east-id", target="the-one-before"))
    before = assess(observed(resource=resource(status=status))).status
    after = assess(observed(resource=resource(status=before, generation=2))).status

    assert "ClusterChanged" in {one.reason for one in before.conditions}
    assert before.cluster_ids == status.cluster_ids
    assert "ClusterChanged" not in {one.reason for one in after.conditions}
    assert after.cluster_ids == ClusterIds(source="east-id", target="west-id")


def test_assess_returns_when_to_assess_again() -> None:
    """Otherwise no event would trigger the next assessment."""
    life = _Life()
    life.see(WELL, 0)
    seen = advanced(STUCK, life.last, life.status, life.memory, after_s=1)
    first = assess(seen)
    assert 60 == first.again_after_s
    again = advanced(STUCK, seen, first.status, first.memory, after_s=45)

    assert 15 == assess(again).again_after_s


def test_short_timings_are_a_setting() -> None:
    """Tests, and those who want to know sooner."""
    life = _Life()
    life.see(WELL, 0)
    quick = replace(STUCK, settle_s=2.0)

    assert ["True", "False"] == [life.see(quick, 2).status.value for _ in range(2)]


def test_the_first_status_has_the_generation_and_is_unknown() -> None:
    """kstatus takes a resource without either for finished."""
    new = deployment(observed_generation=0, replicas=0, updated=0, ready=0, conditions=())
    seen = observed(connectors=(connector(deployment=new, pods=()),), resource=resource(generation=7))
    status = assess(seen).status
    told = {condition.type: condition.status.value for condition in status.conditions}

    assert 7 == status.observed_generation
    assert ("Unknown", "True", "False") == (told["Ready"], told["Reconciling"], told["Stalled"])


def test_a_new_spec_does_not_keep_the_ids_of_the_old_ones_clusters() -> None:
    """It may name others: the pods tell again."""
    status = settled(WELL)
    silent = observed({"reading": None}, resource=resource(generation=2, status=status), connectors=())

    assert status.cluster_ids is not None
    assert assess(silent).status.cluster_ids is None


def test_figures_are_written_once_a_minute_and_changes_of_meaning_at_once() -> None:
    """With traffic, records come and go and the lag with them."""
    old = settled(WELL)
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
    """An hour of polls every half minute, with records now and then."""
    life = _Life()
    life.see(WELL, 0)
    written, last_write_s, writes = life.status, life.last.now_s, 0
    busy = observed(
        {"reading": reading(replicating=Replicating.ADVANCING, records_per_s=1.0, lag_records=3, lag_s=12.0)}
    )
    for at in range(120):
        life.see(busy if at % 2 else WELL, 30)
        now_s = life.last.now_s
        if held_s(written, life.status, last_write_s=last_write_s, now_s=now_s) == 0:
            written, last_write_s, writes = life.status, now_s, writes + 1

    assert 0 < writes <= 60


def test_a_status_of_another_release_is_read_field_by_field() -> None:
    """An unknown field must not cost the pinned version."""
    found = parse_status(
        {
            "version": "1.0.0",
            "lag": "a while",
            "moods": [1],
            "conditions": [{"type": "Ready"}, 3],
            "seed": None,
        }
    )

    assert Status(version="1.0.0") == found
    assert Status() == parse_status(None) == parse_status("no")


@given(st.floats(0, 4e9))
def test_timestamps_survive_a_round_trip(at_s: float) -> None:
    """To the second."""
    assert int(at_s) == seconds(timestamp(at_s))
    assert seconds("yesterday") is None


def test_every_condition_and_reason_is_documented() -> None:
    """docs/conditions.md says of each what it means and what to do."""
    text = (ROOT / "docs" / "conditions.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))

    assert {reason.value for reason in Reason} <= rows
    assert {kind.value for kind in ConditionType} <= set(re.findall(r"^## (\w+)", text, re.MULTILINE))


def test_the_crd_accepts_every_reason() -> None:
    """The pattern of a condition's words is the schema's."""
    crd: dict[str, Any] = yaml.safe_load((ROOT / "crds" / "mirrorflows.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    pattern = schema["properties"]["conditions"]["items"]["properties"]["reason"]["pattern"]

    assert all(re.search(pattern, one.value) for one in (*Reason, *ConditionType))
    assert all(isinstance(reason, Reason) for reason in IMMEDIATE)
    assert {one.value for one in ConditionStatus} == {"True", "False", "Unknown"}
