"""Mutants: the protocol with one rule of its design taken out, each to be found by the model within some seeds.

A rule that no mutant breaks is not tested by the model. Most mutants let a step of the protocol get an answer without its
request being made.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mirrorflow_core.writer import flow_lock, form, ownership, resync, takeover, write_window
from mirrorflow_core.writer.broker_requests import Done, ReadPositions, Transaction
from mirrorflow_core.writer.claim import ClaimWatch, ids_to_take
from mirrorflow_core.writer.end_lookup import EndLookup
from mirrorflow_core.writer.form import PartitionForm
from mirrorflow_core.writer.write_window import WriteWindow
from tests.model.writer import process, world
from tests.model.writer.running import Outcome, Scenario, run
from tests.model.writer.scenarios import SCENARIOS

Replaced = tuple[Any, str, Any]  # owner, attribute, what stands there in the mutant
Steps = Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """*rule* is the sentence that it breaks."""

    name: str
    rule: str
    replaced: Callable[[], tuple[Replaced, ...]]
    scenarios: tuple[str, ...]
    seeds: int = 300
    is_quick: bool = True  # found within a second

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The protocol has it inside the block."""
        replaced = self.replaced()
        kept = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in kept:
                setattr(owner, name, value)

    def find(self) -> tuple[int, Outcome] | None:
        """The first seed that shows it; None if none does."""
        scenarios: list[Scenario] = [SCENARIOS[name] for name in self.scenarios]
        with self.in_place():
            for seed in range(self.seeds):
                for scenario in scenarios:
                    outcome = run(scenario, seed=seed)
                    if not outcome.is_good:
                        return seed, outcome
        return None


def _answered(function: Callable[..., Steps], answer: Callable[[Any], Any]) -> Callable[..., Steps]:
    """*function* of the protocol, in which *answer* gives the answers to some requests; None: the broker does."""

    def steps(*args: Any, **kwargs: Any) -> Steps:
        running = function(*args, **kwargs)
        got: tuple[Any, ...] | None = None
        while True:
            try:
                asked = next(running) if got is None else running.send(got)
            except StopIteration as stop:
                return stop.value
            given = [answer(request) for request in asked]
            rest = tuple(request for request, one in zip(asked, given, strict=True) if one is None)
            answers = iter((yield rest) if rest else ())
            got = tuple(next(answers) if one is None else one for one in given)

    return steps


def _returns(value: Any) -> Callable[..., Steps]:
    """A step of the protocol that asks nothing and returns *value*."""

    def steps(*_args: Any, **_kwargs: Any) -> Steps:
        return value
        yield

    return steps


def _transactions_succeed(request: Any) -> Any:
    return Done() if isinstance(request, Transaction) else None


# -- rule 1


def _no_position_first() -> tuple[Replaced, ...]:
    return ((takeover, "_start_task", _answered(takeover._start_task, _transactions_succeed)),)


def _left_in_spite_of_lost_answers() -> tuple[Replaced, ...]:
    return ((WriteWindow, "is_certain", property(lambda window: True)),)  # noqa: ARG005


# -- rule 2


def _newcomers_do_not_wait() -> tuple[Replaced, ...]:
    return ((ClaimWatch, "may_take", lambda watch, now_ms: True),)  # noqa: ARG005


def _no_claim() -> tuple[Replaced, ...]:
    return ((ownership, "_commit_claim", _returns(True)),)


def _own_ids_only() -> tuple[Replaced, ...]:
    return ((ownership, "ids_to_take", lambda claims, own, positions: own.writer_ids),)  # noqa: ARG005


def _named_writers_are_trusted() -> tuple[Replaced, ...]:
    original = takeover._decided_positions

    def decided(lock: Any, producers: Any, partitions: Any) -> Steps:
        known = set(producers)
        found = yield from original(lock, producers, partitions)
        if isinstance(found, dict):
            found = {
                key: one if set(one.writer or ()) <= known else replace(one, left=True)
                for key, one in found.items()
            }
        return found

    return (
        (takeover, "_decided_positions", decided),
        (ownership, "ids_to_take", lambda claims, own, positions: ids_to_take(claims, own, ())),  # noqa: ARG005
    )


def _positions_from_before_the_ids() -> tuple[Replaced, ...]:
    original = ownership.take_flow

    def take_flow(plan: Any) -> Steps:
        running, first, got = original(plan), None, None
        while True:
            try:
                asked = next(running) if got is None else running.send(got)
            except StopIteration as stop:
                return stop.value
            if asked and isinstance(asked[0], ReadPositions) and first is not None:
                got = first
                continue
            got = yield asked
            if asked and isinstance(asked[0], ReadPositions):
                first = got

    return ((ownership, "take_flow", take_flow),)


def _no_fence() -> tuple[Replaced, ...]:
    return (
        (takeover, "_fence", _returns(None)),
        (takeover, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),
    )


def _fenced_when_the_coordinator_has_answered() -> tuple[Replaced, ...]:
    return ((takeover, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),)


def _no_second_check() -> tuple[Replaced, ...]:
    def take_ids(lock: Any, names: Any) -> Steps:  # noqa: ARG001
        return (yield from flow_lock.initialize(names))

    return ((ownership, "take_ids", take_ids), (takeover, "take_ids", take_ids))


def _no_lookup() -> tuple[Replaced, ...]:
    return ((EndLookup, "copied", property(lambda lookup: 0)),)  # noqa: ARG005


def _lost_markers_are_awaited() -> tuple[Replaced, ...]:
    return ((takeover, "_MARKER_WAIT_MS", 10**9),)


# -- rule 3


def _open_transactions_stay() -> tuple[Replaced, ...]:
    return ((takeover, "_decide_open_transactions", _returns(None)),)


def _always(*, commit: bool) -> Callable[[], tuple[Replaced, ...]]:
    def replaced() -> tuple[Replaced, ...]:
        original = takeover._decide_open_transactions

        def decide(starts: Any) -> Steps:
            return original(
                {
                    key: replace(one, open_transactions=dict.fromkeys(one.open_transactions, commit))
                    for key, one in starts.items()
                }
            )

        return ((takeover, "_decide_open_transactions", decide),)

    return replaced


# -- rule 4


def _sequences_start_again() -> tuple[Replaced, ...]:
    original = WriteWindow.move

    def move(window: Any, **fields: Any) -> None:
        original(window, **fields)
        window.acknowledged = replace(window.acknowledged, sequence=-1)

    return ((WriteWindow, "move", move),)


def _pipelines_at_once() -> tuple[Replaced, ...]:
    return ((WriteWindow, "_is_remembered", lambda window, wall_ms: True),)  # noqa: ARG005


# -- rule 5


def _old_records_are_plain() -> tuple[Replaced, ...]:
    return ((form, "plain_age_limit_ms", lambda expiration_ms: 10**15),)  # noqa: ARG005


def _plain_with_a_short_memory() -> tuple[Replaced, ...]:
    return ((form, "SHORTEST_EXPIRATION_MS", 0),)


def _gaps_without_a_position() -> tuple[Replaced, ...]:
    return ((PartitionForm, "_ends_stretch", lambda state, batch: batch.leader_epoch != state.source_epoch),)


def _source_epochs_without_a_position() -> tuple[Replaced, ...]:
    return ((PartitionForm, "_ends_stretch", PartitionForm._skips),)


def _positions_apart_from_their_records() -> tuple[Replaced, ...]:
    original = process.Task._commit_alone

    def commit(task: Any, *, left: bool) -> Any:
        """Commit what is written before the position is added."""
        transaction = task.producers.transactional
        running, got = original(task, left=left), None
        while True:
            try:
                asked = running.send(got)
            except StopIteration as stop:
                return stop.value
            cells = (
                dict(zip(asked.execute.__code__.co_freevars, asked.execute.__closure__ or (), strict=True))
                if (isinstance(asked, world.Call) and hasattr(asked.execute, "__code__"))
                else {}
            )
            partition = cells["partition"].cell_contents if "partition" in cells else None
            if partition == world.POSITIONS and left is False:
                yield from task.world.end_transaction(transaction, commit=True)
                yield from task.world.add_partitions(transaction, {world.POSITIONS})
            got = yield asked

    return ((process.Task, "_commit_alone", commit),)


# -- rule 7


def _source_epochs_are_not_asked() -> tuple[Replaced, ...]:
    def answer(request: Any) -> Any:
        return -1 if getattr(request, "on_target", None) is False else None

    return (
        (takeover, "_start_of_partition", _answered(takeover._start_of_partition, answer)),
        (process.Task, "_is_truncated", lambda task, lane: False),  # noqa: ARG005
    )


def _target_epochs_are_not_asked() -> tuple[Replaced, ...]:
    def answer(request: Any) -> Any:
        return -1 if getattr(request, "on_target", None) is True else None

    return (
        (takeover, "_start_of_partition", _answered(takeover._start_of_partition, answer)),
        (resync, "has_lost_records", _returns(False)),
    )


# -- rules 9, 10, 11


def _fenced_comes_back() -> tuple[Replaced, ...]:
    """A refused writer takes new epochs without asking whether the flow is still its own."""
    yes = _returns(True)
    return ((ownership, "holds_lock", yes), (flow_lock, "holds_lock", yes), (resync, "holds_lock", yes))


def _forgotten_ids_are_not_waited_for() -> tuple[Replaced, ...]:
    return ((takeover, "_wait_for_closed_connections", _returns(None)),)


def _low_epochs() -> tuple[Replaced, ...]:
    return ((flow_lock, "FIRST_EPOCH", 0), (world, "FIRST_EPOCH", 0))


def _repeats_are_not_noticed() -> tuple[Replaced, ...]:
    return (*_low_epochs(), (write_window, "APPENDED_NOW", None))


MUTANTS = (
    Mutant(
        name="no position first",
        rule="A position that names the new epoch is stored before its first plain batch.",
        replaced=_no_position_first,
        scenarios=("race",),
    ),
    Mutant(
        name="left in spite of lost answers",
        rule="No position says `left`, or changes the form, while a batch without an answer can still be appended.",
        replaced=_left_in_spite_of_lost_answers,
        scenarios=("connections",),
        seeds=1000,
        is_quick=False,
    ),
    Mutant(
        name="newcomers do not wait",
        rule="A newcomer waits until the claim says `left` or was not renewed for 15 s.",
        replaced=_newcomers_do_not_wait,
        scenarios=("waiting",),
    ),
    Mutant(
        name="no claim",
        rule="A newcomer commits a claim with the lock's epoch before it reads positions.",
        replaced=_no_claim,
        scenarios=("race",),
        is_quick=False,
    ),
    Mutant(
        name="own ids only",
        rule="The ids to take are all below the largest task count of the last committed and all later claims.",
        replaced=_own_ids_only,
        scenarios=("fewer_tasks",),
        is_quick=False,
    ),
    Mutant(
        name="named writers are trusted",
        rule="Every writer that a position without `left` names is taken, too.",
        replaced=_named_writers_are_trusted,
        scenarios=("dying_newcomers",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="positions from before the ids",
        rule="Positions are read after the ids are taken.",
        replaced=_positions_from_before_the_ids,
        scenarios=("race", "mixed_race"),
    ),
    Mutant(
        name="no fence",
        rule="The plain writers that positions without `left` name are fenced in their partitions.",
        replaced=_no_fence,
        scenarios=("race",),
    ),
    Mutant(
        name="fenced when the coordinator has answered",
        rule="The fence stands when its marker is in the partition's log, not when EndTxn has answered.",
        replaced=_fenced_when_the_coordinator_has_answered,
        scenarios=("race",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="lost markers are awaited",
        rule="A fence whose marker does not come is repeated (KAFKA-20734).",
        replaced=_lost_markers_are_awaited,
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="no second check",
        rule="The lock is checked again after every InitProducerId of a task.",
        replaced=_no_second_check,
        scenarios=("recovery",),
        is_quick=False,
    ),
    Mutant(
        name="fenced comes back",
        rule="A refused writer checks the lock, and is out if it is another's.",
        replaced=_fenced_comes_back,
        scenarios=("race",),
    ),
    Mutant(
        name="no lookup",
        rule="The records since the position are counted in the target's log.",
        replaced=_no_lookup,
        scenarios=("race",),
    ),
    Mutant(
        name="open transactions stay",
        rule="A transaction whose marker is missing in a partition gets it.",
        replaced=_open_transactions_stay,
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="missing markers are committed",
        rule="A missing marker aborts what the position does not count.",
        replaced=_always(commit=True),
        scenarios=("offline",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="missing markers are aborted",
        rule="A missing marker commits what the position counts.",
        replaced=_always(commit=False),
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="sequences start again",
        rule="In an epoch that has written to the partition, sequences go on behind our last one.",
        replaced=_sequences_start_again,
        scenarios=("quiet",),
        is_quick=False,
    ),
    Mutant(
        name="pipelines at once",
        rule="One batch is in flight until the first is acknowledged.",
        replaced=_pipelines_at_once,
        scenarios=("fresh_leaders",),
    ),
    Mutant(
        name="old records are plain",
        rule="Old timestamps never go under the plain id.",
        replaced=_old_records_are_plain,
        scenarios=("hours", "mixed_race"),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="plain with a short memory",
        rule="Below one hour of producer.id.expiration.ms nothing is plain.",
        replaced=_plain_with_a_short_memory,
        scenarios=("short_memory",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="gaps without a position",
        rule="A position is stored at every gap of the source's offsets.",
        replaced=_gaps_without_a_position,
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="source epochs without a position",
        rule="A position is stored at every change of the source's leader epoch.",
        replaced=_source_epochs_without_a_position,
        scenarios=("source",),
    ),
    Mutant(
        name="positions apart from their records",
        rule="Records and positions are committed together.",
        replaced=_positions_apart_from_their_records,
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="source epochs are not asked",
        rule="OffsetsForLeaderEpoch is asked on the source: a rewritten source goes to the loss policy.",
        replaced=_source_epochs_are_not_asked,
        scenarios=("source",),
        is_quick=False,
    ),
    Mutant(
        name="target epochs are not asked",
        rule="OffsetsForLeaderEpoch is asked on the target: a target that lost its tail is filled again.",
        replaced=_target_epochs_are_not_asked,
        scenarios=("unclean_target",),
    ),
    Mutant(
        name="forgotten ids are not waited for",
        rule="If the producer id is another than the position's, held bytes must meet a closed connection first.",
        replaced=_forgotten_ids_are_not_waited_for,
        scenarios=("forgotten_ids",),
        seeds=1500,
    ),
    Mutant(
        name="low epochs",
        rule="Ids begin at a high epoch: a stranger with our producer id has a low one.",
        replaced=_low_epochs,
        scenarios=("strangers",),
    ),
)
