"""Plans a verification: reads the offsets of all partitions that the flow copies; `partition_planner` cuts each one.

    stored offsets, then the end offsets of the target, then those of the source

With this order, each target record is of a source record before the source's frozen end, and what a stored
offset reports as copied is before the target's frozen end. So a flow may run while it is verified.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy, make_selection
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings
from mirrorflow_seed.verify.partition_planner import (
    PartitionLayout,
    PartitionPlanner,
    VerifyPlan,
)
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.stored_offsets import read_stored_offsets

CONCURRENT_PARTITIONS: Final = 16  # planned at once; each takes a few small fetches
# The flow's own transactions over old records are committed twice a second.
STABLE_WAIT_S: Final = 5.0
STABLE_LOOK_S: Final = 0.2


async def make_plan(
    source: Cluster, target: Cluster, settings: SourceSettings, plan_settings: VerifyPlanSettings
) -> VerifyPlan:
    """Returns the plan. Raises ClusterError, SettingError."""
    notes: list[str] = []
    partitions = await _partition_layouts(source, target, settings, plan_settings, notes)
    found = VerifyPlan(notes=notes, partitions=len(partitions))
    gate = asyncio.Semaphore(CONCURRENT_PARTITIONS)

    async def plan_partition(one: PartitionLayout) -> None:
        async with gate:
            await PartitionPlanner(source, target, settings, plan_settings, one, found).plan_partition()

    async with asyncio.TaskGroup() as group:
        for one in partitions:
            group.create_task(plan_partition(one))
    found.ranges.sort(key=lambda verify_range: -verify_range.offsets)
    return found


def compared_topics(topics: Iterable[str], settings: SourceSettings, notes: list[str]) -> dict[str, str]:
    """Returns source topic -> target topic, of those of *topics* that are compared; adds *notes* on the others.

    Heartbeats never decide a verification: they are written all the time, and expire on each side by itself.
    """
    selection, naming = make_selection(settings), make_naming(settings)
    policy = make_replication_policy(settings)
    copied: dict[str, str] = {}
    for name in topics:
        if not selection.selects(name):
            continue
        if naming.route(name).dropped_by or selection.obstacle(name):
            notes.append(f"{name} is not compared: transforms exclude it from the flow.")
        elif policy.is_heartbeats_topic(name):
            notes.append(f"{name} is not compared: it holds heartbeats.")
        else:
            copied[name] = naming.target_topic(name)
    return copied


async def _partition_layouts(
    source: Cluster,
    target: Cluster,
    settings: SourceSettings,
    plan_settings: VerifyPlanSettings,
    notes: list[str],
) -> list[PartitionLayout]:
    topics = await admin.list_topics(source)
    await target.refresh(None)
    copied = compared_topics(
        [name for name, topic in sorted(topics.items()) if not topic.error], settings, notes
    )
    there = target.metadata.topics
    ours = [TopicPartition(name, number) for name in copied for number in topics[name].partitions]
    theirs = [
        TopicPartition(copied[at.topic], at.partition)
        for at in ours
        if copied[at.topic] in there and at.partition in there[copied[at.topic]].partitions
    ]
    target_begins = await admin.offsets_at(target, theirs, EARLIEST)
    known = await read_stored_offsets(source, target, settings)
    notes += known.problems
    target_ends, unstable = await _stable_ends(target, theirs)
    source_ends = await admin.offsets_at(source, ours, LATEST, read_committed=settings.read_committed)
    source_begins = await admin.offsets_at(source, ours, EARLIEST)
    compacted, expiring, stamping = await _topic_policies(source, target, copied, notes)
    result = []
    for at in ours:
        copy_partition = TopicPartition(copied[at.topic], at.partition)
        here = known.of(
            at,
            source_topic_id=source.metadata.topic_id(at.topic),
            target_topic_id=target.metadata.topic_id(copy_partition.topic),
        )
        there_too = (
            OffsetRange(target_begins[copy_partition], target_ends[copy_partition])
            if copy_partition in target_ends
            else None
        )
        one = PartitionLayout(
            at=at,
            target=copy_partition,
            source=OffsetRange(source_begins[at], source_ends[at]),
            on_target=there_too,
            known=here,
            copied_before=None if copy_partition in unstable else here.copied_before,
            is_compacted=at.topic in compacted,
            can_expire=at.topic in expiring,
            timestamps=plan_settings.timestamps and at.topic not in stamping,
        )
        result.append(cut_at_source_end(one) if plan_settings.target_may_be_ahead else one)
    return result


def cut_at_source_end(one: PartitionLayout) -> PartitionLayout:
    """Returns *one* without what the flow copied from behind the source's end, which is an archive's."""
    there, end = one.on_target, one.source.end
    if there is None or (one.known.copied_before or 0) <= end:
        return one
    exact = [guess.offset for guess in one.known.on_target(end) if guess.is_exact]
    if not exact:
        return replace(one, is_end_unknown=True)
    at = max(there.start, min(exact[0], there.end))
    # Compaction may have removed a key's record here because a newer one lies behind the end.
    return replace(one, on_target=OffsetRange(there.start, at), can_expire=True)


async def _stable_ends(
    target: Cluster, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """Waits until the target is committed up to its current end.

    Returns the committed ends, and the partitions that did not get there within STABLE_WAIT_S.
    """
    written = await admin.offsets_at(target, partitions, LATEST)
    deadline = asyncio.get_running_loop().time() + STABLE_WAIT_S
    while True:
        ends = await admin.offsets_at(target, partitions, LATEST, read_committed=True)
        open_ = {one for one in partitions if ends[one] < written[one]}
        if not open_ or asyncio.get_running_loop().time() >= deadline:
            return ends, open_
        await asyncio.sleep(STABLE_LOOK_S)


async def _topic_policies(
    source: Cluster, target: Cluster, copied: dict[str, str], notes: list[str]
) -> tuple[set[str], set[str], set[str]]:
    """Source topics compacted on either side; deleted by retention on either; stamped by the target."""
    try:
        here = await admin.describe_topic_configs(source, copied)
        there = await admin.describe_topic_configs(target, copied.values())
    except NotAuthorizedError as error:
        notes.append(f"Topics are compared as not compacted, because their settings cannot be read: {error}")
        return set(), set(), set()
    compacted, expiring, stamping = set(), set(), set()
    for name, copy in copied.items():
        of_source = {entry.name: entry.value or "" for entry in here.get(name, ())}
        of_target = {entry.name: entry.value or "" for entry in there.get(copy, ())}
        policies = of_source.get("cleanup.policy", ""), of_target.get("cleanup.policy", "")
        if any("compact" in policy for policy in policies):
            compacted.add(name)
        if any("delete" in policy for policy in policies):
            expiring.add(name)
        if of_target.get("message.timestamp.type") == "LogAppendTime":
            stamping.add(name)
            notes.append(
                f"Timestamps of {name} are not compared: the target sets its own (message.timestamp.type=LogAppendTime)."
            )
    return compacted, expiring, stamping
