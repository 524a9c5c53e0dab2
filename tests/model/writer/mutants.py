"""Mutants: the protocol without one rule of its design, which the model must detect within some seeds.

The model does not test a rule that no mutant breaks. Most mutants give a step of the protocol a response without
making the request.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mirrorflow_core.copying import error_actions
from mirrorflow_core.copying.batch_packer import ANY_AGE_MS, NO_AGE_MS, Packer
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.copying.read_cursor import ReadCursor
from mirrorflow_core.copying.transaction import TaskTransaction
from mirrorflow_core.copying.transaction_requests import Commit, StorePositions
from mirrorflow_core.copying.write_mode_tracker import WriteModeTracker
from mirrorflow_core.send_window import SendWindow
from mirrorflow_core.source_epochs import SourceEpochs
from mirrorflow_core.writer import (
    flow_end,
    flow_lock,
    flow_plan,
    ownership,
    partition_start,
    session_end_reason,
    stored_positions,
    takeover,
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
    gather,
)
from mirrorflow_core.writer.claim import ClaimWatch, ids_to_take
from mirrorflow_core.writer.end_lookup import EndLookup
from mirrorflow_core.writer.stream import Stream
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_kafka.client.repeatable_requests import may_repeat
from tests.model.writer import world
from tests.model.writer.running import Outcome, Scenario, run
from tests.model.writer.scenarios import SCENARIOS

Replaced = tuple[Any, str, Any]  # owner, attribute name, value in the mutant
Steps = Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """The product without the rule that *rule* states."""

    name: str
    rule: str
    replaced: Callable[[], tuple[Replaced, ...]]
    scenarios: tuple[str, ...]
    seeds: int = 300
    is_quick: bool = True  # the search takes less than a second

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Applies the mutant inside the block."""
        replaced = self.replaced()
        originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in originals:
                if value is None:  # inherited, or set only on instances
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)

    def find(self, first_seed: int = 0) -> tuple[int, Outcome] | None:
        """The first seed from *first_seed* on whose run fails, with its outcome; None if no run fails."""
        scenarios: list[Scenario] = [SCENARIOS[name] for name in self.scenarios]
        with self.applied():
            for seed in range(first_seed, first_seed + self.seeds):
                for scenario in scenarios:
                    outcome = run(scenario, seed=seed)
                    if not outcome.is_good:
                        return seed, outcome
        return None


def _with_responses(function: Callable[..., Steps], respond: Callable[[Any], Any]) -> Callable[..., Steps]:
    """*function* with the responses of *respond*; the broker responds where *respond* returns None."""

    def steps(*args: Any, **kwargs: Any) -> Steps:
        running = function(*args, **kwargs)
        results: tuple[Any, ...] | None = None
        while True:
            try:
                pending = next(running) if results is None else running.send(results)
            except StopIteration as stop:
                return stop.value
            responses_or_none = [respond(request) for request in pending]
            rest = tuple(
                request
                for request, response in zip(pending, responses_or_none, strict=True)
                if response is None
            )
            responses = iter((yield rest) if rest else ())
            results = tuple(
                next(responses) if response is None else response for response in responses_or_none
            )

    return steps


def _returns(value: Any) -> Callable[..., Steps]:
    """A step of the protocol that makes no requests and returns *value*."""

    def steps(*_args: Any, **_kwargs: Any) -> Steps:
        return value
        yield

    return steps


def _without_requests(_decisions: Any, _partitions: Any, now: Any) -> Steps:
    """A step of a task's transaction that makes no requests."""
    return now
    yield


def _transactions_succeed(request: Any) -> Any:
    return Done() if isinstance(request, Transaction) else None


# -- rule 1


def _no_position_first() -> tuple[Replaced, ...]:
    return ((takeover, "_start_task", _with_responses(takeover._start_task, _transactions_succeed)),)


def _no_reason(**ignored: Any) -> Callable[[], tuple[Replaced, ...]]:
    """No session ends for the reason in *ignored*."""

    def replaced() -> tuple[Replaced, ...]:
        original = session_end_reason.session_end_reason
        return (
            (
                session_end_reason,
                "session_end_reason",
                lambda target, stream, **fields: original(target, stream, **fields | ignored),
            ),
        )

    return replaced


def _leader_epochs_are_not_read() -> tuple[Replaced, ...]:
    return ((TaskTransaction, "_ask_leaders", _without_requests),)


def _new_leaders_do_not_end_the_session() -> tuple[Replaced, ...]:
    return (*_no_reason(has_new_leader=False)(), *_leader_epochs_are_not_read())


def _left_in_spite_of_lost_responses() -> tuple[Replaced, ...]:
    return ((PartitionCopier, "has_uncertain_writes", property(lambda copier: False)),)  # noqa: ARG005


def _final_codes_are_harmless() -> tuple[Replaced, ...]:
    return ((error_actions, "SESSION_ENDING_CODES", frozenset()),)


def _offsets_are_not_compared() -> tuple[Replaced, ...]:
    """An acknowledged batch counts at any offset, even after a refused batch."""
    original = Stream.acknowledge

    def acknowledge(stream: Stream, base_offset: int) -> Any:
        stream.has_refusals = False
        result = original(stream, base_offset)
        stream.has_fallen_back = False
        return result

    return ((Stream, "acknowledge", acknowledge),)


def _commits_are_repeated() -> tuple[Replaced, ...]:
    return ((world, "may_repeat", lambda _: True),)


def _add_partitions_is_repeated() -> tuple[Replaced, ...]:
    return ((world, "may_repeat", lambda api: api == "AddPartitionsToTxn" or may_repeat(api)),)


def _replaced_ids_are_awaited() -> tuple[Replaced, ...]:
    original = stored_positions._complete_positions

    def complete(producers: Any, lost: Any) -> Steps:
        completed = yield from original(producers, lost)
        return completed if all(producer.transactional_id for producer in lost) else None

    return ((stored_positions, "_complete_positions", complete),)


def _decided_transactions_are_not_awaited() -> tuple[Replaced, ...]:
    return ((takeover, "_is_decided", _returns(True)),)


def _earlier_epochs_are_not_compared() -> tuple[Replaced, ...]:
    original = partition_start.end_in_source

    def end_in_source(partition: Any, epoch: int, _: SourceEpochs) -> Steps:
        return original(partition, epoch, ())

    return ((partition_start, "end_in_source", end_in_source),)


def _acknowledged_is_in_the_target() -> tuple[Replaced, ...]:
    def unknown(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if isinstance(request, ReadEpochEnd) else None

    return ((takeover, "_newer_position", _with_responses(takeover._newer_position, unknown)),)


# -- rule 2


def _newcomers_do_not_wait() -> tuple[Replaced, ...]:
    return ((ClaimWatch, "may_take", lambda watch, now_ms: True),)  # noqa: ARG005


def _ages_by_the_wall_clock() -> tuple[Replaced, ...]:
    return ((world.World, "monotonic_ms", world.World.wall_ms),)


def _no_claim() -> tuple[Replaced, ...]:
    return ((ownership, "commit_claim", _returns(True)),)


def _ended_flows_are_taken(*, under_lock: bool) -> Callable[[], tuple[Replaced, ...]]:
    """Hides that the flow was ended from newcomers; with *under_lock* only once they have taken the lock."""
    original = flow_lock.read_claims

    def read_claims(barrier: Any = None) -> Steps:
        claims = yield from original(barrier)
        if under_lock and barrier is None:
            return claims
        return replace(claims, committed=tuple(replace(claim, ended=None) for claim in claims.committed))

    return lambda: ((ownership, "read_claims", read_claims),)


def _pending_ends_are_ignored() -> tuple[Replaced, ...]:
    return ((flow_end, "is_end_pending", lambda claims: False),)  # noqa: ARG005


def _own_ids_only() -> tuple[Replaced, ...]:
    return ((ownership, "ids_to_take", lambda claims, own, positions: own.writer_ids),)  # noqa: ARG005


def _spares_are_not_taken() -> tuple[Replaced, ...]:
    def without_spares(claims: Any, own: Any, positions: Any) -> tuple[str, ...]:
        named = {name for position in positions for name in position.open_writer or ()}
        taken = ids_to_take(claims, own, positions)
        return tuple(name for name in taken if name in named or not name.endswith("-spare"))

    return ((ownership, "ids_to_take", without_spares),)


def _open_transactions_of_busy_ids_are_ignored() -> tuple[Replaced, ...]:
    return ((partition_start, "_has_replaced", lambda position, producers: False),)  # noqa: ARG005


def _only_named_ids_count_as_replaced() -> tuple[Replaced, ...]:
    def has_replaced(position: Any, producers: Any) -> bool:
        named = position.writer and position.writer.transactional
        return named in producers and producers[named].transactional_id != named

    return ((partition_start, "_has_replaced", has_replaced),)


def _positions_of_aborted_records_are_trusted() -> tuple[Replaced, ...]:
    return ((partition_start, "aborted_after", _returns({})),)


def _no_epoch_after_a_loss() -> tuple[Replaced, ...]:
    original = partition_start.end_in_source

    def end_in_source(partition: Any, epoch: int, epochs: SourceEpochs) -> Steps:
        end, has_epoch = yield from original(partition, epoch, epochs)
        return end if has_epoch else end._replace(epoch=-1), has_epoch

    return ((partition_start, "end_in_source", end_in_source),)


def _losses_are_reported_when_the_task_starts() -> tuple[Replaced, ...]:
    def reported(request: Any) -> Any:
        return () if isinstance(request, ReportLoss) else None

    return ((takeover, "_start_task", _with_responses(takeover._start_task, reported)),)


def _named_writers_are_trusted() -> tuple[Replaced, ...]:
    original = stored_positions.decided_positions

    def decided(lock: Any, producers: Any, partitions: Any, acknowledged: Any) -> Steps:
        initialized = set(producers)
        positions = yield from original(lock, producers, partitions, acknowledged)
        if isinstance(positions, Refused):
            return positions
        newest = {
            key: position if set(position.writer or ()) <= initialized else replace(position, left=True)
            for key, position in positions.newest.items()
        }
        return positions._replace(newest=newest)

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
        running, first, responses = original(plan), None, None
        while True:
            try:
                pending = next(running) if responses is None else running.send(responses)
            except StopIteration as stop:
                return stop.value
            if pending and isinstance(pending[0], ReadPositions) and first is not None:
                responses = first
                continue
            responses = yield pending
            if pending and isinstance(pending[0], ReadPositions):
                first = responses

    return ((ownership, "take_flow", take_flow),)


def _no_fence() -> tuple[Replaced, ...]:
    return (
        (takeover, "_fence", _returns((None, set()))),
        (partition_start, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),
    )


def _fenced_when_the_coordinator_has_responded() -> tuple[Replaced, ...]:
    return ((partition_start, "EndLookup", lambda **fields: EndLookup(**fields | {"is_fenced": True})),)


def _leaving_partitions_read() -> tuple[Replaced, ...]:
    original = PartitionCopier.fetched

    def fetched(copier: PartitionCopier, *args: Any) -> Any:
        state = copier.state
        if state is not CopierState.LEAVING:
            return original(copier, *args)
        copier.state = CopierState.COPYING
        try:
            return original(copier, *args)
        finally:
            copier.state = state

    return ((PartitionCopier, "fetched", fetched),)


def _no_second_check() -> tuple[Replaced, ...]:
    def take_ids(lock: Any, names: Any, spares: Any = MappingProxyType({})) -> Steps:  # noqa: ARG001
        return (yield from flow_lock.initialize(names, spares))

    return tuple((module, "take_ids", take_ids) for module in (ownership, stored_positions, takeover))


def _no_lookup() -> tuple[Replaced, ...]:
    return ((EndLookup, "copied", property(lambda lookup: 0)),)  # noqa: ARG005


def _lost_markers_are_awaited() -> tuple[Replaced, ...]:
    return ((partition_start, "MARKER_WAIT_MS", 10**9), (takeover, "MARKER_WAIT_MS", 10**9))


# -- rule 3


def _missing_markers_are(change: Callable[[Any, Any, Any], Any]) -> Callable[[], tuple[Replaced, ...]]:
    """*change* replaces the missing markers; it gets the producers, the position and the missing markers."""

    def replaced() -> tuple[Replaced, ...]:
        original = partition_start._missing_markers

        def missing_markers(producers: Any, position: Any, *args: Any) -> Steps:
            return change(producers, position, (yield from original(producers, position, *args)))

        return ((partition_start, "_missing_markers", missing_markers),)

    return replaced


def _only_of_the_last_writer(producers: Any, position: Any, missing: Any) -> Any:
    writer = None if position.writer is None else producers.get(position.writer.transactional)
    return missing._replace(
        decisions={producer: commit and producer == writer for producer, commit in missing.decisions.items()}
    )


def _plain_batches_precede_markers() -> tuple[Replaced, ...]:
    return ((TaskTransaction, "_use_ids", _without_requests),)


def _open_transactions_stay() -> tuple[Replaced, ...]:
    return ((takeover, "_decide_open_transactions", _returns(None)),)


def _missing_markers_always(*, commit: bool) -> Callable[[], tuple[Replaced, ...]]:
    def replaced() -> tuple[Replaced, ...]:
        original = takeover._decide_open_transactions

        def decide(starts: Any, left_out: Any) -> Steps:
            decided = {
                key: replace(start, open_transactions=dict.fromkeys(start.open_transactions, commit))
                for key, start in starts.items()
            }
            return original(decided, left_out)

        return ((takeover, "_decide_open_transactions", decide),)

    return replaced


def _markers_count_as_records() -> tuple[Replaced, ...]:
    original = flow_plan.position_at

    def position_at(partition: Any, point: Any, *args: Any, **fields: Any) -> Any:
        return original(partition, replace(point, plain_start=-1), *args, **fields)

    return ((flow_plan, "position_at", position_at),)


def _empty_producers_are_unknown() -> tuple[Replaced, ...]:
    original = takeover._remembered_sequences

    def remembered(*args: Any) -> Steps:
        sequences = yield from original(*args)
        return {partition: None if sequence == -1 else sequence for partition, sequence in sequences.items()}

    return ((takeover, "_remembered_sequences", remembered),)


# -- partitions that cannot be read or written


def _read_until_available() -> tuple[Replaced, ...]:
    def until_available(steps: Steps) -> Steps:
        """Repeats the requests of *steps* until they are available."""
        try:
            pending = next(steps)
            while True:
                responses = list((yield pending))
                while missing := [
                    index for index, response in enumerate(responses) if isinstance(response, Unavailable)
                ]:
                    again = yield tuple(pending[index] for index in missing)
                    for index, response in zip(missing, again, strict=True):
                        responses[index] = response
                pending = steps.send(tuple(responses))
        except StopIteration as stop:
            return stop.value

    def each(steps: Any, _left_out: Any) -> Steps:
        return (yield from gather({key: until_available(of_key) for key, of_key in steps.items()}))

    return ((takeover, "each_available", each),)


def _refused_fences_are_repeated() -> tuple[Replaced, ...]:
    def refuse(responses: Any, _left_out: Any) -> Any:
        return next(
            (Refused() for response in responses if isinstance(response, Refused) or response.left_out),
            None,
        )

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
    """*alter* changes the tracker, the fields or the batch before the mode of the batch is checked."""

    def replaced() -> tuple[Replaced, ...]:
        original = WriteModeTracker.check

        def check(tracker: Any, batch: Any, from_offset: int, **fields: Any) -> ChangeMode | None:
            return original(tracker, alter(tracker, batch, from_offset, fields), from_offset, **fields)

        return ((WriteModeTracker, "check", check),)

    return replaced


def _without_age(_tracker: Any, batch: Any, _from_offset: int, fields: dict[str, Any]) -> Any:
    return batch._replace(base_timestamp=fields["now_ms"], max_timestamp=fields["now_ms"])


def _no_record_is_held_back() -> tuple[Replaced, ...]:
    """The packer puts old records into plain batches."""
    original = Packer.prepare

    def prepare(packer: Packer, old_before_ms: int, merged_bytes_max: int) -> None:
        original(packer, old_before_ms if old_before_ms == ANY_AGE_MS else NO_AGE_MS, merged_bytes_max)

    return ((Packer, "prepare", prepare),)


def _old_records_are_plain() -> tuple[Replaced, ...]:
    return *_checked(_without_age)(), *_no_record_is_held_back()


def _recent_where_the_target_sets_timestamps() -> tuple[Replaced, ...]:
    next_batch, check, original = PartitionCopier.next_batch, WriteModeTracker.check, Packer.prepare
    current: list[PartitionCopier] = []

    def sets_timestamps() -> bool:
        return current[0].target_topic in current[0].session.log_append_time_topics

    def recording_next_batch(copier: PartitionCopier, *args: Any) -> Any:
        current[:] = [copier]
        return next_batch(copier, *args)

    def check_as_recent(tracker: Any, batch: Any, from_offset: int, **fields: Any) -> ChangeMode | None:
        if sets_timestamps():
            batch = _without_age(tracker, batch, from_offset, fields)
        return check(tracker, batch, from_offset, **fields)

    def prepare(packer: Packer, old_before_ms: int, merged_bytes_max: int) -> None:
        is_recent = sets_timestamps() and old_before_ms != ANY_AGE_MS
        original(packer, NO_AGE_MS if is_recent else old_before_ms, merged_bytes_max)

    return (
        (PartitionCopier, "next_batch", recording_next_batch),
        (WriteModeTracker, "check", check_as_recent),
        (Packer, "prepare", prepare),
    )


def _without_gap_before(tracker: Any, batch: Any, from_offset: int, _fields: dict[str, Any]) -> Any:
    tracker._next_source_offset = max(batch.base_offset, from_offset)
    return batch


def _without_gap_inside(_tracker: Any, batch: Any, _from_offset: int, _fields: dict[str, Any]) -> Any:
    return batch._replace(count=batch.next_offset - batch.base_offset)


def _without_epoch(tracker: Any, batch: Any, _from_offset: int, _fields: dict[str, Any]) -> Any:
    tracker._source_epoch = batch.leader_epoch
    return batch


def _plain_with_a_short_expiration() -> tuple[Replaced, ...]:
    return ((write_mode, "SHORTEST_EXPIRATION_MS", 0),)


def _changes_without_a_position() -> tuple[Replaced, ...]:
    original = PartitionCopier._want_change

    def want_change(copier: PartitionCopier, change: ChangeMode, mode: Any) -> Any:
        effects = original(copier, change, mode)
        if copier.wanted_change is not change:
            return effects
        return *copier.change_mode(change, copier._confirmed_ms), *copier.released(is_marked=False)

    return ((PartitionCopier, "_want_change", want_change),)


def _no_position_after_a_resync() -> tuple[Replaced, ...]:
    def rewind(tracker: Any, next_source_offset: int, **_: bool) -> None:
        tracker._next_source_offset, tracker.change = next_source_offset, None

    return ((WriteModeTracker, "rewind", rewind),)


def _positions_apart_from_their_records() -> tuple[Replaced, ...]:
    """Records are committed before their positions are added."""
    original = TaskTransaction.commit

    def commit(decisions: Any, now: Any) -> Any:
        running, response = original(decisions, now), None
        while True:
            try:
                request = running.send(response)  # type: ignore[arg-type]  # None starts it
            except StopIteration as stop:
                return stop.value
            if isinstance(request, StorePositions):
                yield Commit(request.producer)
            response = yield request

    return ((TaskTransaction, "commit", commit),)


# -- rule 7


def _source_epochs_are_not_read() -> tuple[Replaced, ...]:
    original = ReadCursor.request

    def request(cursor: ReadCursor, *args: Any) -> Any:
        fetch = original(cursor, *args)
        return None if fetch is None else fetch._replace(last_epoch=-1)

    def respond(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if getattr(request, "on_target", None) is False else None

    return (
        (takeover, "start_of_partition", _with_responses(partition_start.start_of_partition, respond)),
        (ReadCursor, "request", request),
    )


def _target_epochs_are_not_read() -> tuple[Replaced, ...]:
    def respond(request: Any) -> Any:
        return LeaderEpochEnd(-1, -1) if getattr(request, "on_target", None) is True else None

    return (
        (takeover, "start_of_partition", _with_responses(partition_start.start_of_partition, respond)),
        *_new_leaders_do_not_end_the_session(),
        *_offsets_are_not_compared(),
    )


# -- rules 9, 10, 11


def _fenced_writer_continues() -> tuple[Replaced, ...]:
    """A refused writer takes new epochs without checking whether it still owns the flow."""
    always = _returns(True)
    return ((ownership, "holds_lock", always), (flow_lock, "holds_lock", always))


def _expired_ids_are_not_waited_for() -> tuple[Replaced, ...]:
    return ((takeover, "_wait_for_closed_connections", _returns(None)),)


def _the_last_epoch_is_used() -> tuple[Replaced, ...]:
    return ((takeover, "LAST_EPOCH", 2**15),)


def _low_epochs() -> tuple[Replaced, ...]:
    return ((flow_lock, "FIRST_EPOCH", 0), (world, "FIRST_EPOCH", 0))


def _repeats_are_not_detected() -> tuple[Replaced, ...]:
    """A response about a batch that the leader already had counts as a response to our batch."""
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
        name="left in spite of lost responses",
        rule="No position is stored as `left` or changes the mode while a batch without a response can still be appended.",
        replaced=_left_in_spite_of_lost_responses,
        scenarios=("connections",),
        seeds=1000,
        is_quick=False,
    ),
    Mutant(
        name="lost responses do not end the session",
        rule="A lost response ends the session of the task.",
        replaced=_no_reason(has_lost_responses=False),
        scenarios=("connections", "fresh_leaders"),
    ),
    Mutant(
        name="new leaders do not end the session",
        rule="A new leader of the target partition ends the session of the task.",
        replaced=_new_leaders_do_not_end_the_session,
        scenarios=("leaders", "unclean_target"),
        is_quick=False,
    ),
    Mutant(
        name="leader epochs are not read",
        rule="Before a commit, and before a partition joins a transaction, the epoch of its leader is read.",
        replaced=_leader_epochs_are_not_read,
        scenarios=("leaders", "offline"),
    ),
    Mutant(
        name="repeats do not end the session",
        rule="A response that shows a different batch with our sequence numbers ends the session.",
        replaced=_no_reason(has_repeat=False),
        scenarios=("log_append_time",),
    ),
    Mutant(
        name="final refusals do not end the session",
        rule="A refusal that does not show what was appended ends the session.",
        replaced=_final_codes_are_harmless,
        scenarios=("expired_producers", "leaders"),
    ),
    Mutant(
        name="newcomers do not wait",
        rule="A newcomer waits until the claim is marked `left` or was not renewed for 15 s.",
        replaced=_newcomers_do_not_wait,
        scenarios=("waiting",),
    ),
    Mutant(
        name="ages by the wall clock",
        rule="The age of a claim is the monotonic time since the last observed change.",
        replaced=_ages_by_the_wall_clock,
        scenarios=("clocks",),
    ),
    Mutant(
        name="ended flows are taken",
        rule="A newcomer does not take a flow that a switchover has ended.",
        replaced=_ended_flows_are_taken(under_lock=False),
        scenarios=("ended",),
    ),
    Mutant(
        name="ends are not looked for under the lock",
        rule="A newcomer reads after it has taken the lock whether the flow was ended.",
        replaced=_ended_flows_are_taken(under_lock=True),
        scenarios=("ended",),
        is_quick=False,
    ),
    Mutant(
        name="pending ends are not cleared",
        rule="An end without a marker in the claims topic yet is cleared, too.",
        replaced=_pending_ends_are_ignored,
        scenarios=("ended",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="no claim",
        rule="A newcomer commits a claim with the lock's epoch before it reads positions.",
        replaced=_no_claim,
        scenarios=("waiting",),
    ),
    Mutant(
        name="own ids only",
        rule="A newcomer takes all ids below the largest task count of the last committed claim and all later ones.",
        replaced=_own_ids_only,
        scenarios=("fewer_tasks",),
        is_quick=False,
    ),
    Mutant(
        name="named writers are trusted",
        rule="A newcomer also takes every writer that a position without `left` names.",
        replaced=_named_writers_are_trusted,
        scenarios=("dying_newcomers",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="read until available",
        rule="A partition that cannot be read is left out of a session, and the others continue.",
        replaced=_read_until_available,
        scenarios=("unavailable_partitions",),
    ),
    Mutant(
        name="refused fences are repeated",
        rule="A partition that cannot be fenced is left out of a session, and the others continue.",
        replaced=_refused_fences_are_repeated,
        scenarios=("unavailable_partitions",),
    ),
    Mutant(
        name="lost positions are read from the topic",
        rule="A running task stores its positions again if the offsets topic has lost them.",
        replaced=_lost_positions_are_read_from_the_topic,
        scenarios=("lost_positions",),
    ),
    Mutant(
        name="the last partition of positions wins",
        rule="The newest position counts, whichever partition of the offsets topic has it.",
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
        rule="A takeover fences the plain writers that positions without `left` name.",
        replaced=_no_fence,
        scenarios=("race",),
        is_quick=False,
    ),
    Mutant(
        name="fenced when the coordinator has responded",
        rule="A fence is complete when its marker is in the partition's log, not at the response to EndTxn.",
        replaced=_fenced_when_the_coordinator_has_responded,
        scenarios=("race",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="lost markers are awaited",
        rule="A fence without a marker is repeated (KAFKA-20734).",
        replaced=_lost_markers_are_awaited,
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="leaving partitions read",
        rule="A partition that leaves takes nothing more: what follows the dropped records would count as copied.",
        replaced=_leaving_partitions_read,
        scenarios=("lost_positions",),
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
        name="fenced writer continues",
        rule="A refused writer checks the lock, and stops if a different process has it.",
        replaced=_fenced_writer_continues,
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
        rule="A session writes the missing markers of open transactions.",
        replaced=_open_transactions_stay,
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="missing markers are committed",
        rule="A missing marker aborts records that the position does not count.",
        replaced=_missing_markers_always(commit=True),
        scenarios=("offline",),
    ),
    Mutant(
        name="missing markers are aborted",
        rule="A missing marker commits records that the position counts.",
        replaced=_missing_markers_always(commit=False),
        scenarios=("offline",),
        is_quick=False,
    ),
    Mutant(
        name="transactions have no size limit",
        rule="A transaction has at most what the target acknowledges in a tenth of the transaction timeout.",
        replaced=lambda: ((SendWindow, "after", lambda window, *_: replace(window, size_bytes=1 << 40)),),
        scenarios=("slow_target",),
    ),
    Mutant(
        name="commits are repeated",
        rule="An EndTxn without a response is not sent again in its epoch: a late copy ends a later transaction.",
        replaced=_commits_are_repeated,
        scenarios=("late_end_txn",),
    ),
    Mutant(
        name="AddPartitionsToTxn is repeated",
        rule="An AddPartitionsToTxn without a response is not sent again: a late copy starts a transaction, whose abort includes positions without a marker.",
        replaced=_add_partitions_is_repeated,
        scenarios=("late_add_partitions",),
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
        rule="A transaction of a replaced producer id, which no process can end, is ignored once its data is read.",
        replaced=_replaced_ids_are_awaited,
        scenarios=("expired_ids_with_open_positions",),
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
        scenarios=("aborted_positions",),
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
        rule="A task starts its next transaction when the marker of the last one is in the offsets topic.",
        replaced=lambda: ((world.World, "await_marker", _returns(value=True)),),
        scenarios=("offline_internal_topics",),
        is_quick=False,
    ),
    Mutant(
        name="decided transactions are not awaited",
        rule="A session starts when the markers of decided transactions are in the log.",
        replaced=_decided_transactions_are_not_awaited,
        scenarios=("undone_decisions",),
    ),
    Mutant(
        name="earlier epochs are not compared",
        rule="If the source lacks the epoch of the last copied record, earlier epochs are compared.",
        replaced=_earlier_epochs_are_not_compared,
        scenarios=("source",),
    ),
    Mutant(
        name="no epoch after a loss",
        rule="After a loss, fetches name an epoch that the source has, so that a second loss is detected.",
        replaced=_no_epoch_after_a_loss,
        scenarios=("rewritten_again",),
    ),
    Mutant(
        name="losses are reported when the task starts",
        rule="A loss is reported before the position after it is stored.",
        replaced=_losses_are_reported_when_the_task_starts,
        scenarios=("retention",),
        is_quick=False,
    ),
    Mutant(
        name="transactions of earlier writers are aborted",
        rule="A missing marker commits records that the position counts, whichever task of the flow has written them.",
        replaced=_missing_markers_are(_only_of_the_last_writer),
        scenarios=("moved_partitions",),
        is_quick=False,
    ),
    Mutant(
        name="transactions of other tasks stay open",
        rule="After an election, a session takes the ids of all tasks if a transaction of an unknown id has no marker.",
        replaced=_missing_markers_are(lambda _, __, markers: markers._replace(has_unknown=False)),
        scenarios=("unclean_target_in_transactions",),
        seeds=2000,
        is_quick=False,
    ),
    Mutant(
        name="transactions that were copied again are committed",
        rule="A missing marker aborts records that the offset map lacks, if the target has lost records copied after them.",
        replaced=lambda: ((partition_start, "_is_mapped", _returns(value=True)),),
        scenarios=("unclean_target_in_transactions",),
        seeds=1000,
        is_quick=False,
    ),
    Mutant(
        name="plain batches precede markers",
        rule="Plain batches follow the marker of the last transaction, so that they are lost with it.",
        replaced=_plain_batches_precede_markers,
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
        rule="A position has the target offset before which its plain epoch has written nothing.",
        replaced=_markers_count_as_records,
        scenarios=("idle",),
    ),
    Mutant(
        name="empty producers are unknown",
        rule="A producer epoch without a batch in a leader's state shows that no record was written.",
        replaced=_empty_producers_are_unknown,
        scenarios=("idle_with_foreign_writers",),
    ),
    Mutant(
        name="spares are not taken",
        rule="A newcomer initializes the spare ids of all tasks.",
        replaced=_spares_are_not_taken,
        scenarios=("sleep_with_a_spare",),
        is_quick=False,
    ),
    Mutant(
        name="open transactions of busy ids are ignored",
        rule="Nothing is written after an open transaction of an id that a spare id replaces.",
        replaced=_open_transactions_of_busy_ids_are_ignored,
        scenarios=("unclean_long_offline",),
        seeds=4000,
        is_quick=False,
    ),
    Mutant(
        name="only named ids count as replaced",
        rule="Nothing is written after an open transaction of a replaced id, even if the position names a different id.",
        replaced=_only_named_ids_count_as_replaced,
        scenarios=("elections_after_spares",),
        seeds=400,
        is_quick=False,
    ),
    Mutant(
        name="aborted transactions of busy ids are ignored",
        rule="Nothing is written after a transaction of an unknown id that was aborted at the end of the copy.",
        replaced=_missing_markers_are(lambda _, __, markers: markers._replace(has_unknown=False)),
        scenarios=("late_decisions",),
    ),
    Mutant(
        name="acknowledged records are in the target",
        rule="Records that the last session acknowledged count only if the target has not lost them.",
        replaced=_acknowledged_is_in_the_target,
        scenarios=("leaders", "fresh_leaders"),
        is_quick=False,
    ),
    Mutant(
        name="sequences start again",
        rule="In an epoch that has written to the partition, sequence numbers continue after our last one.",
        replaced=_sequences_start_again,
        scenarios=("quiet",),
    ),
    Mutant(
        name="transactions count in the plain sequence",
        rule="A position has the last sequence number of plain batches only.",
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
        rule="Records with old timestamps are never written with the plain id.",
        replaced=_old_records_are_plain,
        scenarios=("late_old_records",),
        is_quick=False,
    ),
    Mutant(
        name="records are recent where the target sets timestamps",
        rule="Old records are written in transactions for any message.timestamp.type, because it can change.",
        replaced=_recent_where_the_target_sets_timestamps,
        scenarios=("changing_timestamp_type",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="plain with a short expiration",
        rule="No batch is plain if producer.id.expiration.ms is below one hour.",
        replaced=_plain_with_a_short_expiration,
        scenarios=("short_producer_expiration",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="gaps without a position",
        rule="A position is stored at every gap in the source's offsets.",
        replaced=_checked(_without_gap_before),
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="gaps inside batches are plain",
        rule="A batch with gaps between its records is written in a transaction.",
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
        rule="A position is stored before the mode changes, and before plain batches that do not follow the last ones.",
        replaced=_changes_without_a_position,
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="no position after a resync",
        rule="After a resync, a position is stored before the next plain batch, because there may have been a gap.",
        replaced=_no_position_after_a_resync,
        scenarios=("leaders",),
        seeds=1500,
        is_quick=False,
    ),
    Mutant(
        name="positions are committed apart from their records",
        rule="Records and positions are committed together.",
        replaced=_positions_apart_from_their_records,
        scenarios=("mixed_race",),
    ),
    Mutant(
        name="source epochs are not read",
        rule="The leader epochs of the source are compared, so that a rewritten source is handled by the loss policy.",
        replaced=_source_epochs_are_not_read,
        scenarios=("source",),
        is_quick=False,
    ),
    Mutant(
        name="target epochs are not read",
        rule="The leader epochs of the target are compared, so that a lost tail is copied again.",
        replaced=_target_epochs_are_not_read,
        scenarios=("unclean_target",),
    ),
    Mutant(
        name="expired ids are not waited for",
        rule="If the producer id differs from the position's, the takeover waits until old connections are closed.",
        replaced=_expired_ids_are_not_waited_for,
        scenarios=("expired_ids",),
        seeds=1500,
    ),
    Mutant(
        name="the last epoch is used",
        rule="Plain batches are not written in an epoch that the next session cannot fence.",
        replaced=_the_last_epoch_is_used,
        scenarios=("idle_at_the_last_epochs",),
    ),
    Mutant(
        name="low epochs",
        rule="Ids start at a high epoch, because a foreign producer with our producer id has a low one.",
        replaced=_low_epochs,
        scenarios=("foreign_writers",),
    ),
    Mutant(
        name="repeats are not detected",
        rule="A response about a batch that the leader already had does not count as a response to our batch.",
        replaced=_repeats_are_not_detected,
        scenarios=("foreign_writers",),
    ),
)
