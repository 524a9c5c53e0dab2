"""Plans a verification: reads the offsets of all partitions of the flow, which `partition_planner` then cuts.

    partition_layouts (driver) ──> planning_groups ──> plan_layouts (driver, or a task for each group) ──> joined_plan

It reads the stored offsets first, then the end offsets of the target, then those of the source. So each target record
is a copy of a source record before the source's frozen end, and records that are copied according to a stored offset
lie before the target's frozen end. A flow may run while it is verified.
"""

import asyncio
import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from mirrorflow_core.errors import ClusterError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.retention_hold import limit_of
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy, make_selection
from mirrorflow_seed.errors import NothingSelectedError
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings
from mirrorflow_seed.verify.open_transactions import describe_open_transactions
from mirrorflow_seed.verify.partition_planner import PartitionLayout, PartitionPlanner, VerifyPlan
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.stored_offsets import StoredOffsets, read_stored_offsets

CONCURRENT_PARTITIONS: Final = 16  # planned at once; each takes a few small fetches
READS_OF_TASK: Final = 2_000  # some seconds: 10 ms each, CONCURRENT_PARTITIONS at once, or one after the other within a partition
# The flow's own transactions over old records are committed twice a second.
STABLE_WAIT_S: Final = 5.0
STABLE_POLL_S: Final = 0.2
OPEN_TRANSACTION: Final = "The target has {}; compare again once it has ended."


async def plan_layouts(
    source: Cluster,
    target: Cluster,
    settings: SourceSettings,
    plan_settings: VerifyPlanSettings,
    layouts: Sequence[PartitionLayout],
) -> VerifyPlan:
    """Returns the plan of these partitions. Raises ClusterError, SettingError."""
    verify_plan = VerifyPlan(partitions=len(layouts))
    gate = asyncio.Semaphore(CONCURRENT_PARTITIONS)

    async def plan_partition(partition: PartitionLayout) -> None:
        async with gate:
            await PartitionPlanner(
                source, target, settings, plan_settings, partition, verify_plan
            ).plan_partition()

    async with asyncio.TaskGroup() as group:
        for partition in layouts:
            group.create_task(plan_partition(partition))
    return verify_plan


def joined_plan(plans: Sequence[VerifyPlan], notes: Sequence[str]) -> VerifyPlan:
    """Returns the plans of all partitions as one, with *notes*; the largest range comes first."""
    ranges = [verify_range for plan in plans for verify_range in plan.ranges]
    return VerifyPlan(
        ranges=sorted(ranges, key=lambda verify_range: -verify_range.offsets),
        undecided=[window for plan in plans for window in plan.undecided],
        notes=[*notes, *(note for plan in plans for note in plan.notes)],
        partitions=sum(plan.partitions for plan in plans),
    )


def limit_ranges(layouts: Sequence[PartitionLayout], plan_settings: VerifyPlanSettings) -> VerifyPlanSettings:
    """Returns *plan_settings* with ranges so large that the plan of all *layouts* fits into the driver's memory."""
    return plan_settings.with_range_limit(
        sum(layout.source_offsets.end - layout.source_offsets.start for layout in layouts)
    )


def planning_groups(
    layouts: Sequence[PartitionLayout], plan_settings: VerifyPlanSettings
) -> list[list[PartitionLayout]]:
    """Returns the partitions that one task plans, each group of about READS_OF_TASK reads; one group if there are few of them."""
    groups: list[list[PartitionLayout]] = []
    filled = 0
    for layout in layouts:
        reads = layout.expected_reads(plan_settings)
        if not groups or filled + reads > READS_OF_TASK:
            groups.append([])
            filled = 0
        groups[-1].append(layout)
        filled += reads
    return groups


def compared_topics(topics: Collection[str], settings: SourceSettings, notes: list[str]) -> dict[str, str]:
    """Maps those of *topics* that are compared to their target topics; adds *notes* on the others.

    Heartbeats are not compared: they are written all the time, and expire on each side by itself.
    """
    selection, naming = make_selection(settings), make_naming(settings)
    policy = make_replication_policy(settings)
    copied: dict[str, str] = {}
    for name in topics:
        if not selection.selects(name):
            continue
        if naming.route(name).dropped_by is not None or selection.obstacle(name) is not None:
            notes.append(f"{name} is not compared: transforms exclude it from the flow.")
        elif policy.is_heartbeats_topic(name):
            notes.append(f"{name} is not compared: it holds heartbeats.")
        else:
            copied[name] = naming.target_topic(name)
    for name in selection.named:
        if name not in topics:
            similar = get_close_matches(name, topics, n=1)
            meant = f" Is {similar[0]} meant?" if similar else ""
            notes.append(
                f"{name} is not compared: the source has no such topic that this flow may see.{meant}"
            )
    return copied


async def _source_partitions(
    source: Cluster, settings: SourceSettings, notes: list[str]
) -> tuple[dict[str, str], list[TopicPartition]]:
    """Returns the target topic of each compared topic, and their partitions. Raises NothingSelectedError, ClusterError."""
    topics = await admin.list_topics(source)
    present = [name for name, topic in sorted(topics.items()) if not topic.error]
    if (nothing_selected := make_selection(settings).nothing_selected(present)) is not None:
        raise NothingSelectedError(nothing_selected)
    copied = compared_topics(present, settings, notes)
    return copied, [TopicPartition(name, number) for name in copied for number in topics[name].partitions]


async def partition_layouts(
    source: Cluster,
    target: Cluster,
    settings: SourceSettings,
    plan_settings: VerifyPlanSettings,
    notes: list[str],
) -> list[PartitionLayout]:
    """Returns the offsets and settings of all compared partitions; adds *notes*. Raises ClusterError, SettingError."""
    copied, source_partitions = await _source_partitions(source, settings, notes)
    await target.refresh(None)
    target_topics = target.metadata.topics
    copies = [TopicPartition(copied[partition.topic], partition.partition) for partition in source_partitions]
    target_partitions = [
        copy
        for copy in copies
        if copy.topic in target_topics and copy.partition in target_topics[copy.topic].partitions
    ]
    unpaired: dict[TopicPartition, TopicPartition] = {}
    if not plan_settings.target_may_be_ahead:  # an archive may end before such partitions were created
        unpaired = await _without_source(source, target, copied, source_partitions)
    target_partitions += unpaired
    target_starts = await admin.offsets_at(target, target_partitions, EARLIEST)
    flow_offsets = await read_stored_offsets(source, target, settings)
    notes += flow_offsets.problems
    target_ends, open_on_target = await _stable_ends(target, target_partitions)
    source_ends = await _source_ends(source, source_partitions, settings, notes)
    source_starts = await admin.offsets_at(source, source_partitions, EARLIEST)
    policies = await _topic_policies(source, target, copied, notes)
    source_bytes, target_bytes = await _log_sizes(source, target, policies, plan_settings)
    result = []
    for partition in source_partitions:
        target_partition = TopicPartition(copied[partition.topic], partition.partition)
        stored = flow_offsets.of(
            partition,
            source_topic_id=source.metadata.topic_id(partition.topic),
            target_topic_id=target.metadata.topic_id(target_partition.topic),
        )
        target_end = target_ends.get(target_partition)
        layout = PartitionLayout(
            source=partition,
            target=target_partition,
            source_offsets=OffsetRange(source_starts[partition], source_ends[partition]),
            target_offsets=None
            if target_end is None
            else OffsetRange(target_starts[target_partition], target_end),
            stored=stored,
            copied_before=None if target_partition in open_on_target else stored.copied_before,
            is_compacted=partition.topic in policies.compacted,
            can_expire=partition.topic in policies.expiring,
            timestamps=plan_settings.timestamps and partition.topic not in policies.stamping,
            open_transaction=OPEN_TRANSACTION.format(open_on_target[target_partition])
            if target_partition in open_on_target
            else None,
            deleted_before_ms=policies.deleted_before_ms.get(partition.topic),
            log_bytes=max(source_bytes.get(partition, 0), target_bytes.get(target_partition, 0)) or None,
        )
        result.append(cut_at_source_end(layout) if plan_settings.target_may_be_ahead else layout)
    return result + _layouts_without_source(unpaired, target_starts, target_ends)


def _layouts_without_source(
    unpaired: Mapping[TopicPartition, TopicPartition],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[PartitionLayout]:
    return [
        _layout_without_source(source, target, OffsetRange(starts[target], ends[target]))
        for target, source in unpaired.items()
        if starts[target] < ends[target]
    ]


async def _without_source(
    source: Cluster, target: Cluster, copied: Mapping[str, str], source_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, TopicPartition]:
    """Maps partitions of copies that no source topic has to those that the source would have."""
    paired = {TopicPartition(copied[partition.topic], partition.partition) for partition in source_partitions}
    topics = target.metadata.topics
    unpaired = {
        partition: TopicPartition(name, partition.partition)
        for name, copy in copied.items()
        if copy in topics
        for partition in (TopicPartition(copy, number) for number in topics[copy].partitions)
        if partition not in paired
    }
    if not unpaired:
        return {}
    # The source may have got them since its topics were listed, and the flow may have copied to them.
    now = await admin.list_topics(source)
    return {
        partition: origin
        for partition, origin in unpaired.items()
        if origin.topic in now
        and not now[origin.topic].error
        and origin.partition not in now[origin.topic].partitions
    }


def _layout_without_source(
    source: TopicPartition, target: TopicPartition, target_offsets: OffsetRange
) -> PartitionLayout:
    """Returns the layout of a target partition that the source lacks: each of its records is an extra one.

    The source is not read, so it is compared in order also if the topic is compacted.
    """
    return PartitionLayout(
        source=source,
        target=target,
        source_offsets=OffsetRange(0, 0),
        target_offsets=target_offsets,
        stored=StoredOffsets(),
        copied_before=None,
        is_compacted=False,
        can_expire=False,
        timestamps=False,
    )


def cut_at_source_end(layout: PartitionLayout) -> PartitionLayout:
    """Returns *layout* without the target records of source offsets after the source's end, which is an archive's."""
    on_target, end = layout.target_offsets, layout.source_offsets.end
    if on_target is None or (layout.stored.copied_before or 0) <= end:
        return layout
    exact = [guess.offset for guess in layout.stored.target_guesses(end) if guess.is_exact]
    if not exact:
        return replace(layout, is_end_unknown=True)
    target_end = max(on_target.start, min(exact[0], on_target.end))
    # Compaction may have removed a key's record here because a newer one follows after the end.
    return replace(layout, target_offsets=OffsetRange(on_target.start, target_end), can_expire=True)


async def _source_ends(
    source: Cluster, partitions: Sequence[TopicPartition], settings: SourceSettings, notes: list[str]
) -> dict[TopicPartition, int]:
    """Returns the ends of what the flow copies; adds *notes* on transactions that stay open there."""
    if not settings.read_committed:
        return await admin.offsets_at(source, partitions, LATEST)
    ends, open_transactions = await _stable_ends(source, partitions)
    notes += [
        f"{partition}: the source has {transaction}; records after it are not compared."
        for partition, transaction in sorted(open_transactions.items())
    ]
    return ends


async def _stable_ends(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Waits until all transactions up to the current ends of *partitions* have ended.

    Returns the last stable offsets, and a description of each transaction that stayed open for STABLE_WAIT_S.
    """
    written = await admin.offsets_at(cluster, partitions, LATEST)
    deadline = asyncio.get_running_loop().time() + STABLE_WAIT_S
    while True:
        ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=True)
        unstable = {partition: end for partition, end in ends.items() if end < written[partition]}
        if not unstable or asyncio.get_running_loop().time() >= deadline:
            return ends, await describe_open_transactions(cluster, unstable)
        await asyncio.sleep(STABLE_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicies:
    """What the settings of topics say, by the names of source topics; empty if they cannot be read."""

    compacted: Collection[str] = ()  # on either side
    expiring: Collection[str] = ()  # have retention, on either side
    stamping: Collection[str] = ()  # the target sets the timestamps
    # The target's retention may delete records with older timestamps; infinite: all, as by size; -infinite: none.
    deleted_before_ms: Mapping[str, float] = field(default_factory=dict)


async def _log_sizes(
    source: Cluster, target: Cluster, policies: TopicPolicies, plan_settings: VerifyPlanSettings
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Returns the bytes of the logs of both sides, if a topic is compacted; a log of unknown size is read by one task."""
    sizes: list[Mapping[TopicPartition, int]] = [{}, {}]
    for index, cluster in enumerate((source, target)):
        is_archive = plan_settings.target_may_be_ahead and cluster is source
        if policies.compacted and not is_archive:
            with contextlib.suppress(ClusterError):  # not permitted
                sizes[index] = await admin.log_sizes(cluster)
    return sizes[0], sizes[1]


async def _topic_policies(
    source: Cluster, target: Cluster, copied: dict[str, str], notes: list[str]
) -> TopicPolicies:
    try:
        source_configs = await admin.describe_topic_configs(source, copied)
        target_configs = await admin.describe_topic_configs(target, copied.values())
    except NotAuthorizedError as error:
        notes.append(f"Topics are compared as not compacted, because their settings cannot be read: {error}")
        return TopicPolicies()
    compacted, expiring, stamping = set(), set(), set()
    deleted_before_ms: dict[str, float] = {}
    for name, copy in copied.items():
        of_source = {entry.name: entry.value or "" for entry in source_configs.get(name, ())}
        of_target = {entry.name: entry for entry in target_configs.get(copy, ())}
        policies = of_source.get("cleanup.policy", ""), _value(of_target, "cleanup.policy")
        if any("compact" in policy for policy in policies):
            compacted.add(name)
        if any("delete" in policy for policy in policies):
            expiring.add(name)
        if _value(of_target, "message.timestamp.type") == "LogAppendTime":
            stamping.add(name)
            notes.append(
                f"Timestamps of {name} are not compared: the target sets its own (message.timestamp.type=LogAppendTime)."
            )
        elif of_target:
            deleted_before_ms[name] = _deleted_before_ms(of_target)
    return TopicPolicies(
        compacted=compacted, expiring=expiring, stamping=stamping, deleted_before_ms=deleted_before_ms
    )


def _deleted_before_ms(configs: Mapping[str, ConfigEntry]) -> float:
    """Returns the timestamp before which a topic with these settings deletes records by now."""
    if "delete" not in _value(configs, "cleanup.policy"):
        return -math.inf
    if limit_of(configs.get("retention.bytes")) != math.inf:
        return math.inf
    return process.now_ms() - limit_of(configs.get("retention.ms"))


def _value(configs: Mapping[str, ConfigEntry], name: str) -> str:
    return (configs[name].value or "") if name in configs else ""
