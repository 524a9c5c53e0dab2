"""Variants of the product in which one guard is missing. A function of `guards` or of the state machine is replaced."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mirrorflow_core.switchover import guards, state_machine
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.writer import flow_start
from tests.model.switchover.exploring import Explored, explore
from tests.model.switchover.scenarios import SCENARIOS


@dataclass(frozen=True)
class Mutant:
    """The product without the guard in *rule*: `owner.name` is replaced by *value*."""

    rule: str
    scenario: str
    name: str
    value: Callable[..., Any]
    owner: Any = guards

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Applies the mutant inside the block."""
        original = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)
        try:
            yield
        finally:
            setattr(self.owner, self.name, original)

    def explore(self) -> Explored:
        """Explores the mutant's scenario."""
        with self.applied():
            return explore(SCENARIOS[self.scenario].world)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _is_stored_on_target(record, observation) -> bool:
    return record in (observation.target.records or ())


def _is_stored_on_both(record, observation) -> bool:
    return record in (observation.source.records or ()) and record in (observation.target.records or ())


def _all_copies(observation):
    return (*(observation.source.records or ()), *(observation.target.records or ()))


def _resumes_forward(record, runner, _now_ms):
    return record.revised(runner=runner)


def _partial_is_unfenced(cluster) -> bool:
    return cluster.fence is not FenceState.COMPLETE


_sealed = guards.sealed
_reverse_starts = guards.reverse_starts


def _seals_of_all_attempts_are_equal(record, observation):
    return _sealed(replace(record, attempt=0), observation)


def _any_verification(_seal, observation) -> bool:
    return observation.verification is not None


def _starts_at_the_beginning(observation):
    return tuple(replace(start, offset=0) for start in _reverse_starts(observation))


def _starts_too_late(observation):
    return tuple(replace(start, offset=start.offset + 1) for start in _reverse_starts(observation))


def _superseded_by_any(record, observation) -> bool:
    newest = guards.newest_known(observation)
    return newest is not None and newest.key > record.key


def _needs_both_journals(_record, observation) -> bool:
    return observation.source.records is not None and observation.target.records is not None


def _awaits_without_limit(_record, observation, _now_ms) -> bool:
    return guards.may_fence(observation)


MUTANTS = (
    Mutant("An intent is stored before it is carried out.", "target down", "is_stored", _always(True)),
    Mutant("It is stored on both clusters.", "source down", "is_stored", _is_stored_on_target),
    Mutant("A rollback does not wait for the target.", "target lost", "is_stored", _is_stored_on_both),
    Mutant(
        "A run takes over what it has read on both clusters.",
        "crash while the target is down",
        "may_take_over",
        _always(True),
    ),
    Mutant(
        "A target that may be promoted is not given up.",
        "target down, and rolled back without it",
        "is_unpromoted",
        _always(True),
    ),
    Mutant("A run takes over what another one has begun.", "crash", "is_interrupted", _always(False)),
    Mutant("A resumed run goes back to the fence.", "crash", "_resumed", _resumes_forward, state_machine),
    Mutant("A run does not overwrite a newer record.", "the same twice", "is_superseded", _always(False)),
    Mutant("A switchover is carried out once.", "rehearsal twice", "own_record", _always(None)),
    Mutant("A pair has one switchover at a time.", "two at once", "unfinished_record", _always(None)),
    Mutant(
        "Of two copies of a record the newer one counts.",
        "a cluster is down on the way",
        "known_records",
        _all_copies,
    ),
    Mutant("Nothing moves to the active member.", "reverted endpoint", "active_member", _always("east")),
    Mutant("Each check must have a result.", "standby is fenced", "missing_checks", _always([])),
    Mutant("Each check must have passed.", "failed check", "failed_checks", _always([])),
    Mutant("Every binding of the fence is listed.", "standby is fenced", "is_fenced", _always(True)),
    Mutant("A fence that someone removes is noticed.", "fence removed", "is_fence_broken", _always(False)),
    Mutant("A fence is lifted as a whole.", "rehearsal with trouble", "is_unfenced", _partial_is_unfenced),
    Mutant("The target's fence is lifted.", "standby is fenced", "is_unfenced", _always(True)),
    Mutant("Writes are refused for a limited time.", "hanging transaction", "is_past_limit", _always(False)),
    Mutant("Open transactions are waited for.", "transaction", "has_open_transaction", _always(False)),
    Mutant("Ends are sealed when they are quiet.", "standby is fenced", "is_quiet", _always(True)),
    Mutant("Ends that grow behind the seal roll it back.", "bypass", "why_source_changed", _always("")),
    Mutant("Everything up to the seal is copied.", "standby is fenced", "is_copied", _always(True)),
    Mutant("The seal is verified.", "foreign record", "is_verified", _always(True)),
    Mutant("This very seal is verified.", "foreign record after a crash", "is_verified", _any_verification),
    Mutant(
        "Each attempt has a seal of its own.",
        "foreign record after a crash",
        "sealed",
        _seals_of_all_attempts_are_equal,
    ),
    Mutant("Differences roll back.", "foreign record", "has_differences", _always(False)),
    Mutant("Consumers are stopped before the last pass.", "group", "has_active_groups", _always(False)),
    Mutant("Groups have all their offsets.", "group", "has_groups_behind", _always(False)),
    Mutant("A rollback lets the flow run again.", "rollback", "may_run", _always(True)),
    Mutant("The flow has ended before the target is opened.", "bypass", "is_ended", _always(True)),
    Mutant("Clients are led to the target.", "standby is fenced", "is_led_to", _always(True)),
    Mutant("The reverse flow is started.", "standby is fenced", "is_reverse_started", _always(True)),
    Mutant("It is held until then.", "reverse flow is started early", "is_reverse_held", _always(True)),
    Mutant(
        "If it runs already, it is not promoted.",
        "reverse flow is started early",
        "is_reverse_running",
        _always(False),
    ),
    Mutant(
        "A rollback releases it.",
        "reverse flow is started early, and rolled back",
        "is_reverse_released",
        _always(True),
    ),
    Mutant("A rehearsal does not hold it.", "rehearsal", "needs_reverse_held", _always(True)),
    Mutant("It starts behind the copies.", "standby is fenced", "reverse_starts", _starts_at_the_beginning),
    Mutant("It skips nothing.", "standby is fenced", "reverse_starts", _starts_too_late),
    Mutant(
        "It waits until the clusters are reconciled.",
        "unplanned, reverse flow is started too soon",
        "awaited_switchover",
        _always(None),
        flow_start,
    ),
    Mutant("A loss must be accepted.", "unplanned, not accepted", "why_loss_is_refused", _always("")),
    Mutant(
        "The lost source is not needed to begin.",
        "unplanned, source never answers",
        "has_journals",
        _needs_both_journals,
    ),
    Mutant(
        "It is not needed to record an intent.", "unplanned, source lost", "is_stored", _is_stored_on_both
    ),
    Mutant("It is not needed to take over.", "unplanned, source lost", "may_take_over", _needs_both_journals),
    Mutant("A source that answers is fenced first.", "unplanned", "may_fence", _always(False)),
    Mutant("Its fence is given some time.", "unplanned", "is_fence_awaited", _always(False)),
    Mutant("It is not given more.", "unplanned, not to be fenced", "is_fence_awaited", _awaits_without_limit),
    Mutant(
        "The lost flow has ended before the promotion.",
        "unplanned, sleeping copier",
        "is_ended",
        _always(True),
    ),
    Mutant(
        "Groups are placed before the promotion.", "unplanned, group", "are_groups_clamped", _always(True)
    ),
    Mutant("The target's own fence is lifted.", "unplanned, standby is fenced", "is_unfenced", _always(True)),
    Mutant(
        "A source that may be open is named.", "unplanned, source lost", "why_source_is_open", _always("")
    ),
    Mutant(
        "Two unplanned switchovers do not overtake each other.",
        "unplanned twice",
        "may_overtake",
        _always(True),
    ),
    Mutant(
        "A planned switchover that is stuck is overtaken.",
        "planned, then unplanned",
        "may_overtake",
        _always(False),
    ),
    Mutant(
        "What was overtaken does not continue.", "planned, then unplanned", "is_overtaken", _always(False)
    ),
    Mutant("Its end of the flow is replaced.", "planned, then unplanned", "overtaken_end", _always("")),
    Mutant(
        "What was given up supersedes nothing.",
        "planned, then not accepted",
        "is_superseded",
        _superseded_by_any,
    ),
    Mutant(
        "Nothing begins before the clusters are reconciled.",
        "unplanned, then planned",
        "unfinished_record",
        _always(None),
    ),
    Mutant(
        "A restore undoes an unplanned switchover alone.",
        "restore after a planned move",
        "_why_nothing_to_restore",
        _always(""),
    ),
    Mutant(
        "A restore needs a switchover before it.",
        "restore without a move",
        "_why_nothing_to_restore",
        _always(""),
    ),
    Mutant("A restore lifts the fence of the side that returns.", "restore", "is_unfenced", _always(True)),
    Mutant("A restore is verified.", "restore, bypass", "why_source_changed", _always("")),
    Mutant("A restore leads clients back.", "restore", "is_led_to", _always(True)),
    Mutant("A restore starts the flow back.", "restore", "is_reverse_started", _always(True)),
    Mutant(
        "A killed restore goes back to the fence.",
        "restore, crash",
        "_resumed",
        _resumes_forward,
        state_machine,
    ),
    Mutant("A restore that is rolled back lets the flow run.", "restore, rollback", "may_run", _always(True)),
    Mutant("A restore ends the flow before it promotes.", "restore, bypass", "is_ended", _always(True)),
    Mutant("A restore begins when the clusters are reconciled.", "restore", "active_member", _always("east")),
)
