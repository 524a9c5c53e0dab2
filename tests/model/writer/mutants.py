"""Mutants: the protocol with one rule of its design taken out, each to be found by the model within some seeds.

A rule that no mutant breaks is not tested by the model. Most mutants let a step of the protocol get an answer without its
request being made.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mirrorflow_core.copying import error_actions
from mirrorflow_core.copying.batch_packer import ANY_AGE_MS, NO_AGE_MS, Packer
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.read_cursor import ReadCursor
from mirrorflow_core.copying.transaction import Commit, StorePositions, TaskTransaction
from mirrorflow_core.copying.write_mode_tracker import WriteModeTracker
from mirrorflow_core.send_window import SendWindow
from mirrorflow_core.source_epochs import SourceEpochs
from mirrorflow_core.writer import (
    flow_lock,
    flow_plan,
    ownership,
    partition_start,
    stored_positions,
    takeover,
    task_restart_reason,
    transaction_log,
    write_mode,
)
from mirrorflow_core.writer.broker_requests import (
    Done,
    LeaderEpochEnd,
    ReadEpochEnd,
    ReadPositions,
    Refused,
    ReportLoss,
    Transaction,
    Unavailable,
    side_by_side,
)
from mirrorflow_core.writer.claim import ClaimWatch, ids_to_take
from mirrorflow_core.writer.end_lookup import EndLookup
from mirrorflow_core.writer.stream import Stream
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_kafka.client.repeatable_requests import may_repeat
from tests.model.writer import world
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
        kept = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in kept:
                if value is None:  # an attribute of its instances
                    delattr(owner, name)
                else:
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


def _at_once(_decisions: Any, _asked: Any, now: Any) -> Steps:
    """A step of a task's transaction that asks nothing."""
    return now
    yield


def _transactions_succeed(request: Any) -> Any:
    return Done() if isinstance(request, Transaction) else None


# -- rule 1


def _no_position_first() -> tuple[Replaced, ...]:
    return ((takeover, "_start_task", _answered(takeover._start_task, _transactions_succeed)),)


def _no_reason(**ignored: Any) -> Callable[[], tuple[Replaced, ...]]:
    """Nothing ends a start for the reason in *ignored*."""

    def replaced() -> tuple[Replaced, ...]:
        original = task_restart_reason.restart_reason
        return (
            (
                task_restart_reason,
                "restart_reason",
                lambda target, stream, **fields: original(target, stream, **fields | ignored),
            ),
        )

    return replaced


def _leaders_are_not_asked() -> tuple[Replaced, ...]:
    return ((TaskTransaction, "_ask_leaders", _at_once),)


def _new_leaders_do_not_end_it() -> tuple[Replaced, ...]:
    return (*_no_reason(has_new_leader=False)(), *_leaders_are_not_asked())


def _left_in_spite_of_lost_answers() -> tuple[Replaced, ...]:
    return ((PartitionCopier, "has_uncertain_writes", property(lambda copier: False)),)  # noqa: ARG005


def _final_codes_are_harmless() -> tuple[Replaced, ...]:
    return ((error_actions, "FINAL_CODES", frozenset()),)


def _offsets_are_not_compared() -> tuple[Replaced, ...]:
    """What is acknowledged counts, at whatever offset, also instead of a refused batch."""
    original = Stream.acknowledge

    def acknowledge(stream: Stream, base_offset: int) -> Any:
        stream.has_refusals = False
        found = original(stream, base_offset)
        stream.has_fallen_back = False
        return found

    return ((Stream, "acknowledge", acknowledge),)


def _commits_are_repeated() -> tuple[Replaced, ...]:
    return ((world, "may_repeat", lambda _: True),)


def _beginnings_are_repeated() -> tuple[Replaced, ...]:
    return ((world, "may_repeat", lambda api: api == "AddPartitionsToTxn" or may_repeat(api)),)


def _replaced_ids_are_awaited() -> tuple[Replaced, ...]:
    original = stored_positions._complete_positions

    def complete(producers: Any, lost: Any) -> Steps:
        found = yield from original(producers, lost)
        return found if all(one.transactional_id for one in lost) else None

    return ((stored_positions, "_complete_positions", complete),)


def _decided_transactions_are_not_awaited() -> tuple[Replaced, ...]:
    return ((takeover, "_is_decided", _returns(True)),)


def _earlier_epochs_are_not_compared() -> tuple[Replaced, ...]:
    original = partition_start._end_in_source

    def end_in_source(partition: Any, epoch: int, _: SourceEpochs) -> Steps:
        return original(partition, epoch, ())

    return ((partition_start, "_end_in_source", end_in_source),)


def _acknowledged_is_in_the_target() -> tuple[Replaced, ...]:
    def unknown(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if isinstance(request, ReadEpochEnd) else None

    return ((takeover, "_newer_position", _answered(takeover._newer_position, unknown)),)


# -- rule 2


def _newcomers_do_not_wait() -> tuple[Replaced, ...]:
    return ((ClaimWatch, "may_take", lambda watch, now_ms: True),)  # noqa: ARG005


def _ages_by_the_wall_clock() -> tuple[Replaced, ...]:
    return ((world.World, "monotonic_ms", world.World.wall_ms),)


def _no_claim() -> tuple[Replaced, ...]:
    return ((ownership, "_commit_claim", _returns(True)),)


def _own_ids_only() -> tuple[Replaced, ...]:
    return ((ownership, "ids_to_take", lambda claims, own, positions: own.writer_ids),)  # noqa: ARG005


def _spares_are_not_taken() -> tuple[Replaced, ...]:
    def without_spares(claims: Any, own: Any, positions: Any) -> tuple[str, ...]:
        named = {name for one in positions for name in one.open_writer or ()}
        found = ids_to_take(claims, own, positions)
        return tuple(one for one in found if one in named or not one.endswith("-spare"))

    return ((ownership, "ids_to_take", without_spares),)


def _open_transactions_of_busy_ids_are_passed() -> tuple[Replaced, ...]:
    return ((partition_start, "_has_replaced", lambda position, producers: False),)  # noqa: ARG005


def _only_named_ids_count_as_replaced() -> tuple[Replaced, ...]:
    def has_replaced(position: Any, producers: Any) -> bool:
        named = position.writer and position.writer.transactional
        return named in producers and producers[named].transactional_id != named

    return ((partition_start, "_has_replaced", has_replaced),)


def _positions_of_aborted_records_are_trusted() -> tuple[Replaced, ...]:
    return ((partition_start, "aborted_after", _returns({})),)


def _no_epoch_behind_a_loss() -> tuple[Replaced, ...]:
    original = partition_start._end_in_source

    def end_in_source(partition: Any, epoch: int, epochs: SourceEpochs) -> Steps:
        found, has_epoch = yield from original(partition, epoch, epochs)
        return found if has_epoch else found._replace(epoch=-1), has_epoch

    return ((partition_start, "_end_in_source", end_in_source),)


def _losses_are_reported_when_the_task_starts() -> tuple[Replaced, ...]:
    def reported(request: Any) -> Any:
        return () if isinstance(request, ReportLoss) else None

    return ((takeover, "_start_task", _answered(takeover._start_task, reported)),)


def _named_writers_are_trusted() -> tuple[Replaced, ...]:
    original = stored_positions.decided_positions

    def decided(lock: Any, producers: Any, partitions: Any, acknowledged: Any) -> Steps:
        known = set(producers)
        found = yield from original(lock, producers, partitions, acknowledged)
        if isinstance(found, Refused):
            return found
        newest = {
            key: one if set(one.writer or ()) <= known else replace(one, left=True)
            for key, one in found.newest.items()
        }
        return found._replace(newest=newest)

    return (
        (takeover, "decided_positions", decided),
        (ownership, "ids_to_take", lambda claims, own, positions: ids_to_take(claims, own, ())),  # noqa: ARG005
    )


def _lost_positions_are_read_from_the_topic() -> tuple[Replaced, ...]:
    original = stored_positions.decided_positions
    return (
        (
            takeover,
            "decided_positions",
            lambda lock, producers, wanted, _: original(lock, producers, wanted, ()),
        ),
    )


def _the_last_partition_of_positions_wins() -> tuple[Replaced, ...]:
    return ((stored_positions, "newest_positions", lambda logs: {}),)  # noqa: ARG005


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
        (takeover, "_fence", _returns((None, set()))),
        (partition_start, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),
    )


def _fenced_when_the_coordinator_has_answered() -> tuple[Replaced, ...]:
    return ((partition_start, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),)


def _no_second_check() -> tuple[Replaced, ...]:
    def take_ids(lock: Any, names: Any, spares: Any = MappingProxyType({})) -> Steps:  # noqa: ARG001
        return (yield from flow_lock.initialize(names, spares))

    return tuple((one, "take_ids", take_ids) for one in (ownership, stored_positions, takeover))


def _no_lookup() -> tuple[Replaced, ...]:
    return ((EndLookup, "copied", property(lambda lookup: 0)),)  # noqa: ARG005


def _lost_markers_are_awaited() -> tuple[Replaced, ...]:
    return ((partition_start, "MARKER_WAIT_MS", 10**9), (takeover, "MARKER_WAIT_MS", 10**9))


# -- rule 3


def _markers_are_found(change: Callable[[Any, Any, Any], Any]) -> Callable[[], tuple[Replaced, ...]]:
    """*change* is given the producers, the position and the transactions that lack markers."""

    def replaced() -> tuple[Replaced, ...]:
        original = partition_start._missing_markers

        def find(producers: Any, position: Any, *args: Any) -> Steps:
            return change(producers, position, (yield from original(producers, position, *args)))

        return ((partition_start, "_missing_markers", find),)

    return replaced


def _of_the_last_writer_only(producers: Any, position: Any, found: Any) -> Any:
    writer = None if position.writer is None else producers.get(position.writer.transactional)
    return found._replace(
        decisions={one: commit and one == writer for one, commit in found.decisions.items()}
    )


def _plain_batches_pass_markers() -> tuple[Replaced, ...]:
    return ((TaskTransaction, "_use_ids", _at_once),)


def _open_transactions_stay() -> tuple[Replaced, ...]:
    return ((takeover, "_decide_open_transactions", _returns(None)),)


def _always(*, commit: bool) -> Callable[[], tuple[Replaced, ...]]:
    def replaced() -> tuple[Replaced, ...]:
        original = takeover._decide_open_transactions

        def decide(starts: Any, left_out: Any) -> Steps:
            decided = {
                key: replace(one, open_transactions=dict.fromkeys(one.open_transactions, commit))
                for key, one in starts.items()
            }
            return original(decided, left_out)

        return ((takeover, "_decide_open_transactions", decide),)

    return replaced


def _markers_count_as_records() -> tuple[Replaced, ...]:
    original = flow_plan.position_at

    def position_at(partition: Any, point: Any, *args: Any, **fields: Any) -> Any:
        return original(partition, replace(point, plain_start=-1), *args, **fields)

    return ((flow_plan, "position_at", position_at),)


def _nothing_written_is_unknown() -> tuple[Replaced, ...]:
    original = takeover._remembered_sequences

    def remembered(*args: Any) -> Steps:
        found = yield from original(*args)
        return {one: None if sequence == -1 else sequence for one, sequence in found.items()}

    return ((takeover, "_remembered_sequences", remembered),)


# -- partitions that cannot be read or written


def _read_until_answered() -> tuple[Replaced, ...]:
    def patiently(steps: Steps) -> Steps:
        """*steps*, in which what is unavailable is asked for again and again."""
        try:
            asked = next(steps)
            while True:
                answers = list((yield asked))
                while missing := [at for at, one in enumerate(answers) if isinstance(one, Unavailable)]:
                    again = yield tuple(asked[at] for at in missing)
                    for at, answer in zip(missing, again, strict=True):
                        answers[at] = answer
                asked = steps.send(tuple(answers))
        except StopIteration as stop:
            return stop.value

    def each(steps: Any, _left_out: Any) -> Steps:
        return (yield from side_by_side({key: patiently(its) for key, its in steps.items()}))

    return ((takeover, "each_available", each),)


def _refused_fences_are_repeated() -> tuple[Replaced, ...]:
    def refuse(responses: Any, _left_out: Any) -> Any:
        return next((Refused(-1) for one in responses if isinstance(one, Refused) or one.left_out), None)

    return ((takeover, "_note_left_out", refuse),)


# -- rule 4


def _sequences_start_again() -> tuple[Replaced, ...]:
    return ((WriteModeTracker, "first_ordinal", property(lambda tracker: tracker._began)),)


def _transactions_count_in_the_plain_sequence() -> tuple[Replaced, ...]:
    return ((WriteModeTracker, "plain_sequence", lambda tracker, ordinal: ordinal),)  # noqa: ARG005


def _pipelines_at_once() -> tuple[Replaced, ...]:
    never = property(lambda copier: False, lambda copier, value: None)  # noqa: ARG005
    return ((PartitionCopier, "single_in_flight", never),)


# -- rule 5


def _checked(alter: Callable[[Any, Any, int, dict[str, Any]], Any]) -> Callable[[], tuple[Replaced, ...]]:
    """The mode of a batch is checked after *alter* has changed the tracker or the arguments; it returns the batch."""

    def replaced() -> tuple[Replaced, ...]:
        original = WriteModeTracker.check

        def check(tracker: Any, batch: Any, from_offset: int, **fields: Any) -> ChangeMode | None:
            return original(tracker, alter(tracker, batch, from_offset, fields), from_offset, **fields)

        return ((WriteModeTracker, "check", check),)

    return replaced


def _without_age(_tracker: Any, batch: Any, _from_offset: int, fields: dict[str, Any]) -> Any:
    return batch._replace(base_timestamp=fields["now_ms"], max_timestamp=fields["now_ms"])


def _nothing_is_held_back() -> tuple[Replaced, ...]:
    """The packer takes old records for plain batches."""
    original = Packer.hold_back_before

    def hold_back_before(packer: Packer, timestamp_ms: int) -> None:
        original(packer, timestamp_ms if timestamp_ms == ANY_AGE_MS else NO_AGE_MS)

    return ((Packer, "hold_back_before", hold_back_before),)


def _old_records_are_plain() -> tuple[Replaced, ...]:
    return *_checked(_without_age)(), *_nothing_is_held_back()


def _young_where_the_target_sets_timestamps() -> tuple[Replaced, ...]:
    next_batch, check, hold_back = PartitionCopier.next_batch, WriteModeTracker.check, Packer.hold_back_before
    asking: list[PartitionCopier] = []

    def sets_timestamps() -> bool:
        return asking[0].target_topic in asking[0].session.log_append_time_topics

    def asked(copier: PartitionCopier, *args: Any) -> Any:
        asking[:] = [copier]
        return next_batch(copier, *args)

    def checked(tracker: Any, batch: Any, from_offset: int, **fields: Any) -> ChangeMode | None:
        if sets_timestamps():
            batch = _without_age(tracker, batch, from_offset, fields)
        return check(tracker, batch, from_offset, **fields)

    def hold_back_before(packer: Packer, timestamp_ms: int) -> None:
        hold_back(packer, NO_AGE_MS if sets_timestamps() and timestamp_ms != ANY_AGE_MS else timestamp_ms)

    return (
        (PartitionCopier, "next_batch", asked),
        (WriteModeTracker, "check", checked),
        (Packer, "hold_back_before", hold_back_before),
    )


def _without_gap_before(tracker: Any, batch: Any, from_offset: int, _fields: dict[str, Any]) -> Any:
    tracker._next_source_offset = max(batch.base_offset, from_offset)
    return batch


def _without_gap_inside(_tracker: Any, batch: Any, _from_offset: int, _fields: dict[str, Any]) -> Any:
    return batch._replace(count=batch.next_offset - batch.base_offset)


def _without_epoch(tracker: Any, batch: Any, _from_offset: int, _fields: dict[str, Any]) -> Any:
    tracker._source_epoch = batch.leader_epoch
    return batch


def _plain_with_a_short_memory() -> tuple[Replaced, ...]:
    return ((write_mode, "SHORTEST_EXPIRATION_MS", 0),)


def _changes_without_a_position() -> tuple[Replaced, ...]:
    original = PartitionCopier._want_change

    def want_change(copier: PartitionCopier, change: ChangeMode, mode: Any) -> Any:
        effects = original(copier, change, mode)
        if copier.wanted_change is not change:
            return effects
        return *copier.change_mode(change, copier._heard_ms), *copier.released(is_marked=False)

    return ((PartitionCopier, "_want_change", want_change),)


def _no_position_after_a_resync() -> tuple[Replaced, ...]:
    def rewind(tracker: Any, next_source_offset: int) -> None:
        tracker._next_source_offset, tracker.change = next_source_offset, None

    return ((WriteModeTracker, "rewind", rewind),)


def _positions_apart_from_their_records() -> tuple[Replaced, ...]:
    """What is written is committed before the positions are added."""
    original = TaskTransaction.commit

    def commit(decisions: Any, now: Any) -> Any:
        running, answer = original(decisions, now), None
        while True:
            try:
                request = running.send(answer)  # type: ignore[arg-type]  # None begins it
            except StopIteration as stop:
                return stop.value
            if isinstance(request, StorePositions):
                yield Commit(request.producer)
            answer = yield request

    return ((TaskTransaction, "commit", commit),)


# -- rule 7


def _source_epochs_are_not_asked() -> tuple[Replaced, ...]:
    original = ReadCursor.request

    def request(cursor: ReadCursor, partition_bytes: int) -> Any:
        return original(cursor, partition_bytes)._replace(last_epoch=-1)

    def answer(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if getattr(request, "on_target", None) is False else None

    return (
        (takeover, "start_of_partition", _answered(partition_start.start_of_partition, answer)),
        (ReadCursor, "request", request),
    )


def _target_epochs_are_not_asked() -> tuple[Replaced, ...]:
    def answer(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if getattr(request, "on_target", None) is True else None

    return (
        (takeover, "start_of_partition", _answered(partition_start.start_of_partition, answer)),
        *_new_leaders_do_not_end_it(),
        *_offsets_are_not_compared(),
    )


# -- rules 9, 10, 11


def _fenced_comes_back() -> tuple[Replaced, ...]:
    """A refused writer takes new epochs without asking whether the flow is still its own."""
    yes = _returns(True)
    return ((ownership, "holds_lock", yes), (flow_lock, "holds_lock", yes))


def _forgotten_ids_are_not_waited_for() -> tuple[Replaced, ...]:
    return ((takeover, "_wait_for_closed_connections", _returns(None)),)


def _the_last_epoch_is_used() -> tuple[Replaced, ...]:
    return ((takeover, "LAST_EPOCH", 2**15),)


def _low_epochs() -> tuple[Replaced, ...]:
    return ((flow_lock, "FIRST_EPOCH", 0), (world, "FIRST_EPOCH", 0))


def _repeats_are_not_noticed() -> tuple[Replaced, ...]:
    """An answer about a batch that the leader had already counts as an answer to ours."""
    original = PartitionCopier.acknowledged

    def acknowledged(copier: PartitionCopier, base_offset: int, _append_time_ms: int, now_ms: int) -> Any:
        return original(copier, base_offset, -1, now_ms)

    return (*_low_epochs(), (PartitionCopier, "acknowledged", acknowledged))


def _stale_positions_are_stored_again() -> tuple[Replaced, ...]:
    original = transaction_log.decided_records
    return (
        (
            stored_positions,
            "decided_records",
            lambda log, kind, **_: original(log, kind, key=lambda _: object()),
        ),
    )


MUTANTS = (
    Mutant(
        name="no position first",
        rule="A position that names the new epoch is stored before its first plain batch.",
        replaced=_no_position_first,
        scenarios=("race",),
    ),
    Mutant(
        name="left in spite of lost answers",
        rule="No position says `left`, or changes the mode, while a batch without an answer can still be appended.",
        replaced=_left_in_spite_of_lost_answers,
        scenarios=("connections",),
        seeds=1000,
        is_quick=False,
    ),
    Mutant(
        name="lost answers do not end the start",
        rule="A lost answer ends the start of its task.",
        replaced=_no_reason(has_lost_responses=False),
        scenarios=("connections", "fresh_leaders"),
    ),
    Mutant(
        name="new leaders do not end the start",
        rule="Another leader of the target partition ends the start of its task.",
        replaced=_new_leaders_do_not_end_it,
        scenarios=("leaders", "unclean_target"),
        is_quick=False,
    ),
    Mutant(
        name="leaders are not asked",
        rule="Before a commit, and before a partition joins a transaction, its leader is asked for its epoch.",
        replaced=_leaders_are_not_asked,
        scenarios=("leaders", "offline"),
    ),
    Mutant(
        name="repeats do not end the start",
        rule="An answer that another batch has our numbers ends the start.",
        replaced=_no_reason(has_repeat=False),
        scenarios=("stamped",),
    ),
    Mutant(
        name="final refusals are harmless",
        rule="A refusal that leaves open what was appended ends the start.",
        replaced=_final_codes_are_harmless,
        scenarios=("forgetful_leaders", "leaders"),
    ),
    Mutant(
        name="newcomers do not wait",
        rule="A newcomer waits until the claim says `left` or was not renewed for 15 s.",
        replaced=_newcomers_do_not_wait,
        scenarios=("waiting",),
    ),
    Mutant(
        name="ages by the wall clock",
        rule="The age of a claim is measured by a monotonic clock since the claim was seen to change.",
        replaced=_ages_by_the_wall_clock,
        scenarios=("clocks",),
    ),
    Mutant(
        name="no claim",
        rule="A newcomer commits a claim with the lock's epoch before it reads positions.",
        replaced=_no_claim,
        scenarios=("waiting",),
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
        name="read until answered",
        rule="A partition that cannot be read is left out of a start, and the others go on.",
        replaced=_read_until_answered,
        scenarios=("partitions_away",),
    ),
    Mutant(
        name="refused fences are repeated",
        rule="A partition that cannot be part of a fence is left out of a start, and the others go on.",
        replaced=_refused_fences_are_repeated,
        scenarios=("partitions_away",),
    ),
    Mutant(
        name="lost positions are read from the topic",
        rule="A task that runs knows its positions; it stores them again where the offsets topic has lost them.",
        replaced=_lost_positions_are_read_from_the_topic,
        scenarios=("lost_positions",),
    ),
    Mutant(
        name="the last partition of positions wins",
        rule="The newest position counts, in whichever partition of the offsets topic it lies.",
        replaced=_the_last_partition_of_positions_wins,
        scenarios=("growing_positions",),
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
        is_quick=False,
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
        seeds=1000,
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
    ),
    Mutant(
        name="missing markers are aborted",
        rule="A missing marker commits what the position counts.",
        replaced=_always(commit=False),
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="transactions have no largest size",
        rule="A transaction has no more than the target answers in a tenth of its time limit.",
        replaced=lambda: ((SendWindow, "after", lambda window, *_: replace(window, size_bytes=1 << 40)),),
        scenarios=("slow_target",),
    ),
    Mutant(
        name="commits are repeated",
        rule="An EndTxn without a response is not sent again in its epoch: a late copy ends a later transaction.",
        replaced=_commits_are_repeated,
        scenarios=("late_commits",),
    ),
    Mutant(
        name="beginnings are repeated",
        rule="Nor is an AddPartitionsToTxn: a late copy begins a transaction whose abort includes positions without a marker.",
        replaced=_beginnings_are_repeated,
        scenarios=("late_beginnings",),
        is_quick=False,
    ),
    Mutant(
        name="undecided positions stay",
        rule="A transaction whose marker is missing in the offsets topic is ended.",
        replaced=lambda: ((stored_positions, "_complete_positions", _returns({})),),
        scenarios=("offline_internal_topics",),
    ),
    Mutant(
        name="transactions of replaced ids are awaited",
        rule="A transaction that no process can end, because its producer id is replaced, counts no more once its data is read.",
        replaced=_replaced_ids_are_awaited,
        scenarios=("forgotten_open_positions",),
        is_quick=False,
    ),
    Mutant(
        name="undecided positions are dropped",
        rule="An undecided position counts if the data of its transaction is committed.",
        replaced=lambda: ((stored_positions, "_is_copied", _returns(value=False)),),
        scenarios=("offline_internal_topics",),
    ),
    Mutant(
        name="undecided positions are kept",
        rule="An undecided position does not count if the data of its transaction is aborted.",
        replaced=lambda: ((stored_positions, "_is_copied", _returns(value=True)),),
        scenarios=("offline_internal_topics",),
        is_quick=False,
    ),
    Mutant(
        name="stale undecided positions are stored again",
        rule="An undecided position is not stored again if a later one of its partition is committed.",
        replaced=_stale_positions_are_stored_again,
        scenarios=("offline_internal_topics",),
        is_quick=False,
    ),
    Mutant(
        name="markers of positions are not awaited",
        rule="A task begins its next transaction when the marker of the last one is in the offsets topic.",
        replaced=lambda: ((world.World, "await_marker", _returns(value=True)),),
        scenarios=("offline_internal_topics",),
        is_quick=False,
    ),
    Mutant(
        name="decided transactions are not awaited",
        rule="A start waits until the markers of decided transactions are in the log.",
        replaced=_decided_transactions_are_not_awaited,
        scenarios=("undone_decisions",),
    ),
    Mutant(
        name="earlier epochs are not compared",
        rule="A source without the epoch of the last copied record is compared by the epochs before it.",
        replaced=_earlier_epochs_are_not_compared,
        scenarios=("source",),
    ),
    Mutant(
        name="no epoch behind a loss",
        rule="Behind a loss, fetches name an epoch that the source knows, so that a second loss is found.",
        replaced=_no_epoch_behind_a_loss,
        scenarios=("rewritten_again",),
    ),
    Mutant(
        name="losses are reported when the task starts",
        rule="A loss is reported before the position behind it is stored.",
        replaced=_losses_are_reported_when_the_task_starts,
        scenarios=("retention",),
        is_quick=False,
    ),
    Mutant(
        name="transactions of earlier writers are aborted",
        rule="A missing marker commits what the position counts, whichever task of the flow has written it.",
        replaced=_markers_are_found(_of_the_last_writer_only),
        scenarios=("moved_partitions",),
        is_quick=False,
    ),
    Mutant(
        name="transactions of other tasks stay open",
        rule="Behind an election, the ids of all tasks are taken if a transaction of an unknown id has no marker.",
        replaced=_markers_are_found(lambda _, __, found: found._replace(has_unknown=False)),
        scenarios=("unclean_target_in_transactions",),
        seeds=2000,
        is_quick=False,
    ),
    Mutant(
        name="transactions that were copied again are committed",
        rule="A missing marker aborts records that the offset map lacks, if the target has lost what was copied behind them.",
        replaced=lambda: ((partition_start, "_is_mapped", _returns(value=True)),),
        scenarios=("unclean_target_in_transactions",),
        seeds=1000,
        is_quick=False,
    ),
    Mutant(
        name="plain batches pass markers",
        rule="Plain batches follow the marker of the last transaction, so that they are lost with it.",
        replaced=_plain_batches_pass_markers,
        scenarios=("late_markers",),
    ),
    Mutant(
        name="positions of aborted records are trusted",
        rule="Records that a position counts are copied again if the missing marker of their transaction aborts them.",
        replaced=_positions_of_aborted_records_are_trusted,
        scenarios=("unclean_target_in_transactions",),
        seeds=2000,
        is_quick=False,
    ),
    Mutant(
        name="markers count as records",
        rule="A position names the target offset before which its plain epoch has written nothing.",
        replaced=_markers_count_as_records,
        scenarios=("idle",),
    ),
    Mutant(
        name="nothing written is unknown",
        rule="A leader that knows a producer epoch without a batch shows that nothing was written.",
        replaced=_nothing_written_is_unknown,
        scenarios=("idle_with_strangers",),
    ),
    Mutant(
        name="spares are not taken",
        rule="A newcomer initializes the spare ids of all tasks.",
        replaced=_spares_are_not_taken,
        scenarios=("sleep_with_a_spare",),
        is_quick=False,
    ),
    Mutant(
        name="open transactions of busy ids are passed",
        rule="Nothing is written behind an open transaction of an id that a spare replaces.",
        replaced=_open_transactions_of_busy_ids_are_passed,
        scenarios=("unclean_long_offline",),
        seeds=4000,
        is_quick=False,
    ),
    Mutant(
        name="only named ids count as replaced",
        rule="That holds for each id that a spare replaces, whichever id the position names.",
        replaced=_only_named_ids_count_as_replaced,
        scenarios=("elections_behind_spares",),
        seeds=400,
        is_quick=False,
    ),
    Mutant(
        name="aborted transactions of busy ids are passed",
        rule="Nor is anything written behind a transaction of an unknown id that was aborted where the copy ends.",
        replaced=_markers_are_found(lambda _, __, found: found._replace(has_unknown=False)),
        scenarios=("late_decisions",),
    ),
    Mutant(
        name="acknowledged is in the target",
        rule="What the last start acknowledged counts only if the target has not lost it.",
        replaced=_acknowledged_is_in_the_target,
        scenarios=("leaders", "fresh_leaders"),
        is_quick=False,
    ),
    Mutant(
        name="sequences start again",
        rule="In an epoch that has written to the partition, sequences go on behind our last one.",
        replaced=_sequences_start_again,
        scenarios=("quiet",),
    ),
    Mutant(
        name="transactions count in the plain sequence",
        rule="A position has the last sequence of plain batches alone.",
        replaced=_transactions_count_in_the_plain_sequence,
        scenarios=("mixed_race",),
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
        name="records are young where the target sets timestamps",
        rule="Old records go in transactions, whatever message.timestamp.type is: it can change.",
        replaced=_young_where_the_target_sets_timestamps,
        scenarios=("stamped_at_times",),
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
        replaced=_checked(_without_gap_before),
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="gaps inside batches are plain",
        rule="A batch with gaps between its records goes in a transaction.",
        replaced=_checked(_without_gap_inside),
        scenarios=("source",),
    ),
    Mutant(
        name="source epochs without a position",
        rule="A position is stored at every change of the source's leader epoch.",
        replaced=_checked(_without_epoch),
        scenarios=("source",),
    ),
    Mutant(
        name="changes without a position",
        rule="A position is stored before the mode changes, and before plain batches that do not continue the ones before.",
        replaced=_changes_without_a_position,
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="no position after a resync",
        rule="After a resync a position is stored before the next plain batch: a gap may have been passed.",
        replaced=_no_position_after_a_resync,
        scenarios=("leaders",),
        seeds=1500,
        is_quick=False,
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
        name="the last epoch is used",
        rule="Plain batches are not written in an epoch that the next start cannot fence.",
        replaced=_the_last_epoch_is_used,
        scenarios=("idle_at_the_last_epochs",),
    ),
    Mutant(
        name="low epochs",
        rule="Ids begin at a high epoch: a stranger with our producer id has a low one.",
        replaced=_low_epochs,
        scenarios=("strangers",),
    ),
    Mutant(
        name="repeats are not noticed",
        rule="An answer about a batch that the leader had already does not count as an answer to ours.",
        replaced=_repeats_are_not_noticed,
        scenarios=("strangers",),
    ),
)
