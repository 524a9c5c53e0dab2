"""The conditions under which a switchover may go on, each a function of the record and of what is observed.

A function whose name begins with `why_` returns the reason why not, as a sentence; "" if nothing is in the way.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.loss import LossAssessment
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    PartitionEnd,
    ReadinessCheck,
    SwitchoverObservation,
)
from mirrorflow_core.switchover.record import (
    ReverseStart,
    SwitchoverRecord,
    newest_of_each,
    newest_record,
)
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import (
    FENCED,
    LOSSLESS,
    MOVED,
    PROMOTED,
    ROLLED_BACK,
    UNPROMOTED,
    SwitchoverState,
    SwitchoverType,
)

NAMES_MAX = 5  # partitions, groups or producers that a sentence names
# For which an unplanned switchover waits for the fence of a source that answers. Applications cannot write meanwhile, and a DENY
# ACL takes 30 ms: a cluster that has not set it after so long is not able to.
FENCE_TRIED_MS: Final = 10_000
_GIVEN_UP: Final = frozenset({SwitchoverState.REFUSED, SwitchoverState.LIFTED})


# -- who may act


def known_records(observation: SwitchoverObservation) -> tuple[SwitchoverRecord, ...]:
    """Returns the newest record of each switchover, from both journals as far as they could be read.

    A cluster that was away when a switchover ended keeps an older record of it.
    """
    return newest_of_each((*(observation.source.records or ()), *(observation.target.records or ())))


def newest_known(observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the newest record of the pair in both journals."""
    return newest_record(known_records(observation))


def is_superseded(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether another process has written a newer record of the pair since.

    An unplanned switchover that was given up leaves the one before it as it was.
    """
    return any(
        known.key > record.key
        for known in known_records(observation)
        if known.id == record.id or not (known.is_unplanned and known.state in _GIVEN_UP)
    )


def is_interrupted(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether another process has begun what this one continues."""
    return record.runner != observation.runner


def own_record(record: SwitchoverRecord, observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the newest record of the same switchover in the journals: one that has begun is never begun again."""
    return newest_record(known for known in known_records(observation) if known.id == record.id)


def is_overtaken(record: SwitchoverRecord, records: Iterable[SwitchoverRecord]) -> bool:
    """Returns whether one of *records* is a later unplanned switchover, for which *record* no longer counts."""
    return any(
        other.is_unplanned and other.epoch > record.epoch and other.state not in _GIVEN_UP
        for other in records
    )


def unfinished_of(records: Iterable[SwitchoverRecord]) -> SwitchoverRecord | None:
    """Returns the one of *records* that is under way, or waits until the clusters are reconciled."""
    known = tuple(records)
    return newest_record(
        record for record in known if not record.is_final and not is_overtaken(record, known)
    )


def unfinished_record(observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the switchover of the pair that is under way."""
    return unfinished_of(known_records(observation))


def may_overtake(record: SwitchoverRecord, unfinished: SwitchoverRecord) -> bool:
    """Returns whether the unplanned switchover *record* may begin although *unfinished* cannot end without the source."""
    is_stuck = not unfinished.is_unplanned or unfinished.state is SwitchoverState.ROLLING_BACK
    return record.is_unplanned and is_stuck and unfinished.state not in PROMOTED


def overtaken_end(observation: SwitchoverObservation) -> str:
    """Returns the id of the switchover that has ended the flow, and that was overtaken since; "": none."""
    ended = "" if observation.flow_end is None else observation.flow_end.switchover
    known = known_records(observation)
    return ended if any(other.id == ended and is_overtaken(other, known) for other in known) else ""


def active_member(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns the member that the last switchover has promoted; before the first one, the member that *record* names."""
    records = known_records(observation)
    last = newest_record(known for known in records if known.state in MOVED)
    return record.source if last is None else last.to


def why_not_admitted(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns why *record* cannot be the next switchover of its pair. Needs both journals and the endpoint.

    An unplanned one needs the target's journal alone.
    """
    unfinished = unfinished_record(observation)
    if unfinished and unfinished.state is SwitchoverState.DEGRADED:
        return (
            f"pair: the unplanned switchover {unfinished.id} has made {unfinished.to} the active member of {record.pair}, and "
            f"{unfinished.source} may have records that never crossed; reconcile {unfinished.source} first "
            f"(mirrorflow diverged --left {unfinished.source})."
        )
    if unfinished and not may_overtake(record, unfinished):
        return (
            f"pair: switchover {unfinished.id} of {record.pair} is in state {unfinished.state.value}; "
            "wait until it has ended, or roll it back."
        )
    if record.type is SwitchoverType.RESTORE and (problem := _why_nothing_to_restore(record, observation)):
        return problem
    active = active_member(record, observation)
    if record.to in {record.source, active}:
        return f"to: {record.to} is the active member of {record.pair} already; name the other member."
    if not active == record.source == observation.endpoint:
        return (
            f"pair: clients of {record.pair} are led to {observation.endpoint}, but {active} is its active member; "
            f"lead them to {active} first."
        )
    return ""


def _why_nothing_to_restore(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    last = newest_record(known for known in known_records(observation) if known.state in MOVED)
    if last is not None and last.is_unplanned and last.source == record.to:
        return ""
    was = "it had none" if last is None else f"its last one was {last.type.value}, to {last.to}"
    return (
        f"type: Restore makes the member active again that an unplanned switchover of {record.pair} has left, and {was}; "
        "use Planned instead (without --restore)."
    )


def has_journals(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the journals are read that show whether *record* may begin."""
    has_source = observation.source.records is not None or record.is_unplanned
    return has_source and observation.target.records is not None


def may_take_over(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether nothing newer than *record* can be in a journal that is not read; needed once, as only this run writes then."""
    has_read_source = (
        observation.source.records is not None or record.state in PROMOTED or record.is_unplanned
    )
    has_read_target = observation.target.records is not None or may_give_up_target(record, observation)
    return has_read_source and has_read_target


def may_give_up_target(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether *record*, which is the source's newest, is rolled back without the target, as its user wants.

    The target may have a promotion only if the source has FORWARD_ENDED: that state is stored on both before. An unplanned
    switchover needs no source, so only its user can know that there was none.
    """
    return observation.gives_up_target and is_unpromoted(record)


def is_unpromoted(record: SwitchoverRecord) -> bool:
    """Returns whether *record*, if it is the source's newest, shows that it has promoted nothing; a rehearsal never does."""
    is_rehearsal = record.type is SwitchoverType.REHEARSAL and record.state in FENCED
    return is_rehearsal or (not record.is_unplanned and record.state in UNPROMOTED)


def is_stored(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the intent is recorded: on both clusters, or on the one that responds where applications need no more.

    That is the target from promoting on, and the source for a rollback: they must not wait for the cluster that is lost. For an
    unplanned switchover, only the target counts.
    """
    if record.is_unplanned:
        return record in (observation.target.records or ())
    source, target = observation.source.records, observation.target.records
    if source is None and record.state in PROMOTED:
        source = (record,)
    if target is None and record.state in ROLLED_BACK:
        target = (record,)
    return record in (source or ()) and record in (target or ())


# -- before anything changes


def missing_checks(observation: SwitchoverObservation) -> list[ReadinessCheck]:
    """Returns the checks that have no result yet."""
    return [check for check in ReadinessCheck if check not in observation.checks]


def failed_checks(observation: SwitchoverObservation) -> list[str]:
    """Returns the sentences of the checks that have failed."""
    return [problem for problem in observation.checks.values() if problem]


# -- when the source is lost


def why_loss_is_refused(record: SwitchoverRecord, loss: LossAssessment) -> str:
    """Returns what would be lost, if the user has not accepted it; also why there is nothing to switch over to."""
    if not loss.partitions:
        return (
            f"spec.topics: the flow from {record.source} has copied no topic to {record.to} that it selects."
        )
    if record.accepts_loss:
        return ""
    planned = (
        f" {record.source} answers: a planned switchover loses nothing, try it first (leave out --unplanned)."
        if loss.is_source_answering
        else ""
    )
    return f"acceptLoss: {loss.sentence(record.source)}{planned} To switch over and lose that, add --accept-loss."


def may_fence(observation: SwitchoverObservation) -> bool:
    """Returns whether the fence of the source is incomplete and can be tried."""
    return observation.can_fence_source and not is_fenced(observation.source)


def is_fence_awaited(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> bool:
    """Returns whether to wait for the fence of a source that answers; a clock that was set back ends the wait."""
    return may_fence(observation) and 0 <= now_ms - record.entered_ms < FENCE_TRIED_MS


def are_groups_clamped(observation: SwitchoverObservation) -> bool:
    """Returns whether the groups were placed since the flow has ended, but for those that the target refuses."""
    return observation.clamp is not None


def why_source_is_open(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns what the user must know of a source that could not be fenced."""
    if is_fenced(observation.source):
        return ""
    return (
        f"It is not known that {record.source} is fenced: applications that reach it may still write there, and that does not cross. "
        "Keep them away from it."
    )


# -- while writes are refused


def is_fenced(cluster: ClusterObservation) -> bool:
    """Returns whether no application can write: the brokers list the whole fence."""
    return cluster.fence is FenceState.COMPLETE


def is_unfenced(cluster: ClusterObservation) -> bool:
    """Returns whether all applications can write: the brokers list nothing of the fence."""
    return cluster.fence is FenceState.ABSENT


def is_fence_broken(cluster: ClusterObservation) -> bool:
    """Returns whether a part of the fence is known to be missing."""
    return cluster.fence not in {FenceState.COMPLETE, None}


def is_past_limit(record: SwitchoverRecord, now_ms: int) -> bool:
    """Returns whether writes have been refused for as long as the user allows."""
    return now_ms - record.fenced_ms >= record.limits.refused_ms


def has_open_transaction(cluster: ClusterObservation) -> bool:
    """Returns whether a transaction is open; it can still be committed or aborted behind a fence."""
    return any(end.last_stable < end.end for end in (cluster.ends or {}).values())


def is_quiet(cluster: ClusterObservation, quiet_ms: int) -> bool:
    """Returns whether the ends have not changed for *quiet_ms*: what was in flight at the fence has been written."""
    return bool(cluster.ends) and cluster.unchanged_ms is not None and cluster.unchanged_ms >= quiet_ms


def copied_ends(observation: SwitchoverObservation) -> Mapping[TopicPartition, PartitionEnd] | None:
    """Returns the ends of the fenced source if everything before them is copied, and no transaction is open; None otherwise."""
    source, copied = observation.source, observation.copied
    if not source.ends or copied is None or not is_fenced(source) or has_open_transaction(source):
        return None
    is_whole = all(copied.get(partition, 0) >= end.end for partition, end in source.ends.items())
    return source.ends if is_whole else None


def sealed(record: SwitchoverRecord, observation: SwitchoverObservation) -> Seal | None:
    """Returns the seal over what is observed; None while the ends, the positions or the newest records are unknown."""
    ends, copied, tails = observation.source.ends, observation.copied, observation.source.tails
    if not ends or copied is None or tails is None or tails.partitions.keys() != ends.keys():
        return None
    return Seal(
        pair=record.pair,
        switchover=record.id,
        epoch=record.epoch,
        attempt=record.attempt,
        digest_key=tails.key,
        partitions=tuple(
            PartitionSeal(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=end.topic_id,
                end=end.end,
                last_stable=end.last_stable,
                copied=copied.get(partition, 0),
                records=tails.partitions[partition].records,
                digest=tails.partitions[partition].digest,
            )
            for partition, end in sorted(ends.items())
        ),
    )


def why_source_changed(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns what has changed on the source behind the fence, or since it was sealed."""
    if record.state is not SwitchoverState.FENCING and observation.source.unfenced_topics:
        return (
            f"Topics were created on {record.source} since it was fenced: {some(observation.source.unfenced_topics)}; "
            "repeat the switchover when the flow has copied them, and create none meanwhile."
        )
    if record.state is not SwitchoverState.FENCING and is_fence_broken(observation.source):
        return f"The fence on {record.source} was removed by someone else, so writes are accepted."
    return why_ends_differ(record, observation)


def why_ends_differ(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns which partitions of the source differ from the seal, and which producers have written last."""
    if record.seal is None or observation.source.ends is None:
        return ""
    ends = {
        partition: (end.topic_id, end.end, end.last_stable)
        for partition, end in observation.source.ends.items()
    }
    expected = {
        seal.topic_partition: (seal.topic_id, seal.end, seal.last_stable) for seal in record.seal.partitions
    }
    differing = sorted(
        partition for partition in ends | expected if ends.get(partition) != expected.get(partition)
    )
    if not differing:
        return ""
    writes = [write for write in observation.source.last_writes if write.partition in differing]
    latest = sorted(writes, key=lambda write: write.written_ms, reverse=True)
    producers = some(dict.fromkeys(f"producer {write.producer_id}" for write in latest))
    by = f" by {producers}" if producers else ""
    return (
        f"Partitions of {record.source} have changed behind the fence: {some(differing)}{by}; "
        "stop what writes there (super users bypass ACLs)."
    )


def uncopied(seal: Seal, observation: SwitchoverObservation) -> dict[TopicPartition, int] | None:
    """Returns how many offsets each partition of the copy lacks, where it lacks any; None: unknown."""
    if observation.copied is None:
        return None
    missing = {partition: end - observation.copied.get(partition, 0) for partition, end in seal.ends.items()}
    return {partition: lag for partition, lag in missing.items() if lag > 0}


def is_copied(seal: Seal, observation: SwitchoverObservation) -> bool:
    """Returns whether the forward flow has committed everything up to the seal."""
    return uncopied(seal, observation) == {}


def is_verified(seal: Seal, observation: SwitchoverObservation) -> bool:
    """Returns whether this seal was compared: the same ends of an earlier attempt prove nothing about the target now."""
    return observation.verification is not None and observation.verification.seal_sha256 == seal.sha256


def has_differences(observation: SwitchoverObservation) -> bool:
    """Returns whether the comparison has found records that differ."""
    return observation.verification is not None and bool(observation.verification.differences)


def has_active_groups(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether a group could still commit at the source, and the user has not allowed it."""
    return observation.groups is None or (bool(observation.groups.active) and not record.allows_live_groups)


def has_groups_behind(observation: SwitchoverObservation) -> bool:
    """Returns whether a group would read records again at the target."""
    return observation.groups is None or bool(observation.groups.behind)


def may_run(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the forward flow is known to be free of an end of this switchover."""
    return observation.flow_end is not None and observation.flow_end.switchover != record.id


def is_ended(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the flow was ended by this switchover: newcomers obey that, and every log refuses the writers before."""
    return observation.flow_end is not None and observation.flow_end.switchover == record.id


def reverse_starts(observation: SwitchoverObservation) -> tuple[ReverseStart, ...]:
    """Returns where the reverse flow begins: the ends of the copies, after which only applications write; (): unknown."""
    return tuple(
        ReverseStart(
            topic=partition.topic, partition=partition.partition, topic_id=end.topic_id, offset=end.end
        )
        for partition, end in sorted((observation.target.ends or {}).items())
    )


def needs_reverse_held(record: SwitchoverRecord) -> bool:
    """Returns whether *record* may promote, and can reach the cluster that the reverse flow writes to."""
    return record.type in LOSSLESS


def is_reverse_held(observation: SwitchoverObservation) -> bool:
    """Returns whether a process of the reverse flow that someone starts waits: it would copy back what came by the forward flow."""
    return observation.reverse is not None and observation.reverse.held_by != ""


def is_reverse_released(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the reverse flow is known to be free of a hold of this switchover."""
    return observation.reverse is not None and observation.reverse.held_by != record.id


def is_reverse_running(observation: SwitchoverObservation) -> bool:
    """Returns whether a process of the reverse flow is known to copy."""
    return observation.reverse is not None and observation.reverse.is_copying


def is_led_to(endpoint: str, observation: SwitchoverObservation) -> bool:
    """Returns whether clients are led to the member *endpoint*."""
    return observation.endpoint == endpoint


def is_reverse_started(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether this switchover has stored where the reverse flow starts."""
    return observation.reverse is not None and observation.reverse.started_by == record.id


def some(names: Iterable[object]) -> str:
    """Returns the first of *names* for a sentence, and how many more there are."""
    listed = [str(name) for name in names]
    rest = f" and {len(listed) - NAMES_MAX} more" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + rest
