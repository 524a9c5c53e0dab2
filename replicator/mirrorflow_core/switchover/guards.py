"""The conditions under which a switchover may go on, each a function of the record and of what is observed.

A function whose name begins with `why_` returns the reason why not, as a sentence; "" if nothing is in the way.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    PartitionEnd,
    ReadinessCheck,
    SwitchoverObservation,
)
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverRecord, newest_record
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import PROMOTED, ROLLED_BACK, SwitchoverState

NAMES_MAX = 5  # partitions, groups or producers that a sentence names


# -- who may act


def known_records(observation: SwitchoverObservation) -> tuple[SwitchoverRecord, ...]:
    """Returns the newest record of each switchover, from both journals as far as they could be read.

    A cluster that was away when a switchover ended keeps an older record of it.
    """
    records = (*(observation.source.records or ()), *(observation.target.records or ()))
    return tuple({record.id: record for record in sorted(records, key=lambda record: record.key)}.values())


def newest_known(observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the newest record of the pair in both journals."""
    return newest_record(known_records(observation))


def is_superseded(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether another process has written a newer record of the pair since."""
    newest = newest_known(observation)
    return newest is not None and newest.key > record.key


def is_interrupted(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether another process has begun what this one continues."""
    return record.runner != observation.runner


def own_record(record: SwitchoverRecord, observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the newest record of the same switchover in the journals: one that has begun is never begun again."""
    return newest_record(known for known in known_records(observation) if known.id == record.id)


def unfinished_record(observation: SwitchoverObservation) -> SwitchoverRecord | None:
    """Returns the switchover of the pair that is under way."""
    return newest_record(known for known in known_records(observation) if not known.is_final)


def active_member(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns the member that the last switchover has promoted; before the first one, the member that *record* names."""
    records = known_records(observation)
    last = newest_record(known for known in records if known.state is SwitchoverState.DONE)
    return record.source if last is None else last.to


def why_not_admitted(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns why *record* cannot be the next switchover of its pair. Needs both journals and the endpoint."""
    if unfinished := unfinished_record(observation):
        return (
            f"pair: switchover {unfinished.id} of {record.pair} is in state {unfinished.state.value}; "
            "wait until it has ended, or roll it back."
        )
    active = active_member(record, observation)
    if record.to in {record.source, active}:
        return f"to: {record.to} is the active member of {record.pair} already; name the other member."
    if not active == record.source == observation.endpoint:
        return (
            f"pair: clients of {record.pair} are led to {observation.endpoint}, but {active} is its active member; "
            f"lead them to {active} first."
        )
    return ""


def may_take_over(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether nothing newer than *record* can be in a journal that is not read; needed once, as only this run writes then."""
    has_read_source = observation.source.records is not None or record.state in PROMOTED
    return has_read_source and observation.target.records is not None


def is_stored(record: SwitchoverRecord, observation: SwitchoverObservation) -> bool:
    """Returns whether the intent is recorded: on both clusters, or on the one that responds where applications need no more.

    That is the target from promoting on, and the source for a rollback: they must not wait for the cluster that is lost.
    """
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
    """Returns the seal over what is observed; None while the ends or the positions are unknown."""
    ends, copied = observation.source.ends, observation.copied
    if not ends or copied is None:
        return None
    return Seal(
        pair=record.pair,
        switchover=record.id,
        epoch=record.epoch,
        attempt=record.attempt,
        partitions=tuple(
            PartitionSeal(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=end.topic_id,
                end=end.end,
                last_stable=end.last_stable,
                copied=copied.get(partition, 0),
                digest=end.digest,
            )
            for partition, end in sorted(ends.items())
        ),
    )


def why_source_changed(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns what has changed on the source behind the fence, or since it was sealed."""
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
    """Returns whether newcomers obey the end of the flow, which this switchover has set."""
    return observation.flow_end is not None and observation.flow_end.switchover == record.id


def has_all_markers(observation: SwitchoverObservation) -> bool:
    """Returns whether every log refuses the writers that slept while the flow was ended."""
    return observation.flow_end is not None and observation.flow_end.has_all_markers


def reverse_starts(observation: SwitchoverObservation) -> tuple[ReverseStart, ...]:
    """Returns where the reverse flow begins: the ends of the copies, after which only applications write; (): unknown."""
    return tuple(
        ReverseStart(
            topic=partition.topic, partition=partition.partition, topic_id=end.topic_id, offset=end.end
        )
        for partition, end in sorted((observation.target.ends or {}).items())
    )


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
