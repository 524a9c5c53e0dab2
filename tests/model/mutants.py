"""Mutants: product code with one rule broken, each to be found by the model within some seeds.

What no mutant of a clause is found by is not tested by the model. A mutant names the scenarios in which it is looked for;
without it, the same seeds of these hold (tests/model/test_mutants.py).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mirrorflow_core.exactly_once import alignment, resumption
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.exactly_once.resumption import (
    END,
    CompactedMatch,
    DenseWalk,
    Divergence,
    Mark,
    Truncation,
)
from mirrorflow_core.exactly_once.stream import Stream
from mirrorflow_core.wire.batch_limit import BatchLimit
from mirrorflow_kafka.admin import target_probe
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.stores import decision_log
from mirrorflow_replicator.copy import batch_packer, copier_context, expiration_monitor
from mirrorflow_replicator.copy.copier_context import CopierContext
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume import repeat_check, resumer, source_scan, source_truncation
from mirrorflow_replicator.copy.resume.source_scan import SourceScan
from mirrorflow_replicator.copy.transaction_member import TransactionMember
from tests.model.catalogue import SCENARIOS
from tests.model.running import Outcome, run

Replaced = tuple[Any, str, Any]  # owner, attribute, what stands there in the mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """*rule* is the sentence that it breaks."""

    name: str
    rule: str
    replaced: Callable[[], tuple[Replaced, ...]]
    scenarios: tuple[str, ...]
    seeds: range

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The product has it inside the block."""
        replaced = self.replaced()
        kept = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in kept:
                if value is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)

    def find(self) -> Outcome | None:
        """The first run that shows it; None if `seeds` of each scenario do not."""
        with self.in_place():
            for seed in self.seeds:
                for name in self.scenarios:
                    outcome = run(SCENARIOS[name], seed=seed)
                    if not outcome.is_good:
                        return outcome
        return None


def _first_batch_is_not_alone() -> tuple[Replaced, ...]:
    return ((PartitionCopier, "alone", property(lambda lane: False, lambda lane, value: None)),)  # noqa: ARG005


def _absence_is_taken_for_the_position() -> tuple[Replaced, ...]:
    decide = alignment.align

    def align(evidence: alignment.Evidence) -> alignment.Verdict:
        if evidence.memory is None and evidence.tail is None:
            newest = evidence.ladder[0]
            at, end = newest.ordinal, newest.target_offset
            return alignment.ResumeAt(ordinal=at, target_offset=end, known=newest, alone=True)
        return decide(evidence)

    return ((target_probe, "align", align),)


def _a_partition_leaves_without_a_commit() -> tuple[Replaced, ...]:
    return ((TransactionMember, "must_commit", property(lambda pin: False, lambda pin, value: None)),)  # noqa: ARG005


def _batches_are_merged_by_their_compressed_size() -> tuple[Replaced, ...]:
    return (
        (batch_packer, "_fits", lambda batch, limit: True),  # noqa: ARG005
        (BatchLimit, "after_refusal", lambda limit: limit),
    )


def _async(value: object) -> Callable[..., Any]:
    async def answer(*_: Any) -> object:
        return value

    return answer


def _timestamps_of_the_target_are_taken_for_ours() -> tuple[Replaced, ...]:
    return ((source_scan, "_are_equal", lambda found, copy: found.mark == copy.mark),)


def _late_bytes_are_forgotten() -> tuple[Replaced, ...]:
    return ((copier_context, "LATE_BYTES_MS", 0),)


def _a_time_in_an_answer_is_ignored() -> tuple[Replaced, ...]:
    return ((CopierContext, "may_be_another", lambda around, lane: lane.is_compacted),)  # noqa: ARG005


def _the_same_time_is_taken_for_the_same_batch() -> tuple[Replaced, ...]:
    compare = repeat_check.taken_by_stranger

    async def by_time(target: Any, lane: PartitionCopier, repeat: Any, scan: SourceScan) -> Divergence | None:
        found = await compare(target, lane, repeat, scan)
        at = repeat.base_offset
        async for batch, _ in batches_between(target, lane.target, at, at + 1):
            if batch.max_timestamp == repeat.span.max_timestamp:
                return None
        return found

    return ((resumer, "taken_by_stranger", by_time), (SourceScan, "_are_copied", _async(True)))


def _what_follows_a_taken_number_counts() -> tuple[Replaced, ...]:
    return ((Stream, "is_suspect", property(lambda stream: False, lambda stream, value: None)),)  # noqa: ARG005


def _only_the_last_copy_is_compared() -> tuple[Replaced, ...]:
    return ((SourceScan, "_are_copied", _async(True)),)


def _identities_begin_at_epoch_0() -> tuple[Replaced, ...]:
    return ((decision_log, "FIRST_EPOCH", 0),)


def _what_was_rewritten_is_passed_over() -> tuple[Replaced, ...]:
    def truncated_at(ladder: Sequence[alignment.OffsetPair], *_: int) -> Truncation:
        return Truncation(ladder[0], ladder[0].source_offset + 1, is_exact=True)

    find = resumption.truncated_at
    return (
        (
            source_truncation,
            "truncated_at",
            lambda *of: find(*of) and truncated_at(*of),
        ),
    )


def _another_producer_id_is_thought_to_fence() -> tuple[Replaced, ...]:
    return ((Identity, "can_fence", lambda identity, earlier: bool(identity.transactional_id)),)  # noqa: ARG005


def _answers_are_taken_as_new() -> tuple[Replaced, ...]:
    def set_sent(lane: PartitionCopier, value: int) -> None:
        """It is not kept."""

    return ((PartitionCopier, "_sent_ms", property(lambda lane: lane.around.now_ms, set_sent)),)


def _a_lower_expiry_is_not_acted_on() -> tuple[Replaced, ...]:
    return ((expiration_monitor, "READ_EVERY_S", 1e9),)


def _the_epoch_is_raised_over_an_open_transaction() -> tuple[Replaced, ...]:
    return ((decision_log, "_commit_open", _async(None)),)


def _gaps_are_counted() -> tuple[Replaced, ...]:
    async def count(_: SourceScan, at: alignment.ResumeAt) -> alignment.OffsetPair:
        return alignment.OffsetPair(at.known.source_offset + at.walk_records, at.ordinal, at.target_offset)

    return ((SourceScan, "_match", count),)


def _the_last_record_is_not_compared() -> tuple[Replaced, ...]:
    return ((SourceScan, "_is_copied", _async(True)),)


def _the_old_generation_is_not_waited_for() -> tuple[Replaced, ...]:
    return ((Identity, "can_fence", lambda identity, earlier: True),)  # noqa: ARG005


def _a_shorter_source_is_not_compared() -> tuple[Replaced, ...]:
    async def skip(scan: SourceScan, *_: Any) -> Divergence:
        return Divergence(scan.extent.end, 0)

    return ((SourceScan, "difference", skip),)


def _earlier_copies_are_left_out() -> tuple[Replaced, ...]:
    look = CompactedMatch.look

    def look_once(match: CompactedMatch, copies: Sequence[tuple[int, Mark]], *, is_oldest: bool) -> int:
        return END if match._has_copies else look(match, copies, is_oldest=is_oldest)

    return ((CompactedMatch, "look", look_once),)


def _what_compaction_has_left_is_counted() -> tuple[Replaced, ...]:
    def take(
        walk: DenseWalk,
        base_offset: int,
        next_offset: int,
        *,
        records: int | None,
        leader_epoch: int,
        max_timestamp: int,  # noqa: ARG001
    ) -> bool:
        walk.epochs.add(leader_epoch)
        walk._next = next_offset
        left = records or 0
        if left < walk._left:
            walk._left -= left
            return True
        walk.found = base_offset + walk._left - 1
        return False

    return ((DenseWalk, "take", take),)


def _a_compacted_source_is_copied_like_any_other() -> tuple[Replaced, ...]:
    return ((PartitionCopier, "is_compacted", property(lambda lane: False, lambda lane, value: None)),)  # noqa: ARG005


MUTANTS = (
    Mutant(
        name="a_compacted_source_is_copied_like_any_other",
        rule="Partitions of a compacted topic never have more in flight",
        replaced=_a_compacted_source_is_copied_like_any_other,
        scenarios=("compacted_source_is_read_by_two_copiers",),
        seeds=range(20),
    ),
    Mutant(
        name="first_batch_is_not_alone",
        rule="While a leader does not remember the identity, one batch is in flight until it is",
        replaced=_first_batch_is_not_alone,
        scenarios=("replicas_come_late",),
        seeds=range(40),
    ),
    Mutant(
        name="absence_is_taken_for_the_position",
        rule="If the leader does not remember, the log is read.",
        replaced=_absence_is_taken_for_the_position,
        scenarios=("leader_forgets_between_two_lives",),
        seeds=range(10),
    ),
    Mutant(
        name="a_partition_leaves_without_a_commit",
        rule="A partition leaves the transaction only",
        replaced=_a_partition_leaves_without_a_commit,
        scenarios=("change_of_age",),
        seeds=range(14, 34),
    ),
    Mutant(
        name="batches_are_merged_by_their_compressed_size",
        rule="| the target replaces timestamps (LogAppendTime), or recompresses | yes | yes | yes |",
        replaced=_batches_are_merged_by_their_compressed_size,
        scenarios=("target_recompresses",),
        seeds=range(10),
    ),
    Mutant(
        name="timestamps_of_the_target_are_taken_for_ours",
        rule="| the target replaces timestamps (LogAppendTime), or recompresses | yes | yes | yes |",
        replaced=_timestamps_of_the_target_are_taken_for_ours,
        scenarios=("target_stamps_records",),
        seeds=range(10),
    ),
    Mutant(
        name="late_bytes_are_forgotten",
        rule="Where leaders forget within an hour, all records go inside.",
        replaced=_late_bytes_are_forgotten,
        scenarios=("forgotten_identity_and_late_bytes",),
        seeds=range(40),
    ),
    Mutant(
        name="answers_are_taken_as_new",
        rule="confirmed nothing for half of `producer.id.expiration.ms`.",
        replaced=_answers_are_taken_as_new,
        scenarios=("small_and_forgotten",),
        seeds=range(1165, 1170),
    ),
    Mutant(
        name="a_lower_expiry_is_not_acted_on",
        rule="after a decrease a transaction marker on each partition makes leaders remember the flow anew.",
        replaced=_a_lower_expiry_is_not_acted_on,
        scenarios=("expiration_is_lowered_at_run_time",),
        seeds=range(60),
    ),
    Mutant(
        name="the_epoch_is_raised_over_an_open_transaction",
        rule="The transaction that was open is committed first.",
        replaced=_the_epoch_is_raised_over_an_open_transaction,
        scenarios=("settings_change_while_old_records_are_copied",),
        seeds=range(40),
    ),
    Mutant(
        name="a_shorter_source_is_not_compared",
        rule="holds other records of an earlier epoch, or is shorter than the copy, the records of both clusters are compared",
        replaced=_a_shorter_source_is_not_compared,
        scenarios=("source_has_a_log_of_an_earlier_epoch_again",),
        seeds=range(40),
    ),
    Mutant(
        name="gaps_are_counted",
        rule="by comparing timestamp, key, value and headers where some are (a compacted",
        replaced=_gaps_are_counted,
        scenarios=("target_stamps_records_of_a_source_with_gaps",),
        seeds=range(10),
    ),
    Mutant(
        name="earlier_copies_are_left_out",
        rule="100,000 copies at a time, the newest first, down to the stored offset",
        replaced=_earlier_copies_are_left_out,
        scenarios=("killed_in_a_long_first_copy",),
        seeds=range(10),
    ),
    Mutant(
        name="what_compaction_has_left_is_counted",
        rule="by counting where no source offset is missing",
        replaced=_what_compaction_has_left_is_counted,
        scenarios=("cleanup_policy_becomes_delete_before_the_restart",),
        seeds=range(5),
    ),
    Mutant(
        name="the_last_record_is_not_compared",
        rule="the last one are compared with the source in either case",
        replaced=_the_last_record_is_not_compared,
        scenarios=("source_has_a_log_of_an_earlier_epoch_again",),
        seeds=range(20),
    ),
    Mutant(
        name="another_producer_id_is_thought_to_fence",
        rule="Where no transaction can fence (no ACL for the transactional id, or the target has forgotten that id)",
        replaced=_another_producer_id_is_thought_to_fence,
        scenarios=("settings_roll_after_the_transactional_id_has_expired",),
        seeds=range(10),
    ),
    Mutant(
        name="a_time_in_an_answer_is_ignored",
        rule="An answer that names a time says that the leader had a batch under these numbers already",
        replaced=_a_time_in_an_answer_is_ignored,
        scenarios=("stranger_takes_our_number_from_a_backlog",),
        seeds=range(10),
    ),
    Mutant(
        name="the_same_time_is_taken_for_the_same_batch",
        rule="so the records are compared by content, whatever the time",
        replaced=_the_same_time_is_taken_for_the_same_batch,
        scenarios=("stranger_takes_our_number_from_a_backlog",),
        seeds=range(20, 40),
    ),
    Mutant(
        name="what_follows_a_taken_number_counts",
        rule="Nothing behind such an answer counts as delivered until that is clear",
        replaced=_what_follows_a_taken_number_counts,
        scenarios=("stranger_takes_our_number_and_the_policy_is_changed",),
        seeds=range(10, 30),
    ),
    Mutant(
        name="only_the_last_copy_is_compared",
        rule="The first 100 copied records and the last one are compared with the source in either case, and the times of all batches",
        replaced=_only_the_last_copy_is_compared,
        scenarios=("stranger_takes_our_number_and_the_policy_is_changed",),
        seeds=range(10, 30),
    ),
    Mutant(
        name="identities_begin_at_epoch_0",
        rule="so the leader refuses it.",
        replaced=_identities_begin_at_epoch_0,
        scenarios=("strangers_of_lower_epochs",),
        seeds=range(10),
    ),
    Mutant(
        name="what_was_rewritten_is_passed_over",
        rule="if its log was truncated and rewritten, that is a loss, and the loss policy applies.",
        replaced=_what_was_rewritten_is_passed_over,
        scenarios=("source_has_a_log_of_an_earlier_epoch_again",),
        seeds=range(5),
    ),
    Mutant(
        name="the_old_generation_is_not_waited_for",
        rule="2 s and stop by themselves, and the new ones wait for that",
        replaced=_the_old_generation_is_not_waited_for,
        scenarios=("settings_roll_without_a_transactional_id",),
        seeds=range(100, 120),
    ),
)
