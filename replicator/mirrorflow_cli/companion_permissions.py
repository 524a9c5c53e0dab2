"""Checks what the users of the checkpoint and heartbeat connectors may do, without doing any of it.

Permissions are requested for each group separately, also for groups that do not exist yet. A missing
permission is a problem, except for heartbeats on the source: `run` reports that refusal and continues copying
(DESIGN, section 5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mirrorflow_cli.creation import UNAUTHORIZED
from mirrorflow_cli.findings import Findings
from mirrorflow_cli.permissions import Needed, lacking, refused
from mirrorflow_core.connect.offset_map_records import offset_map_topic
from mirrorflow_core.naming.patterns import literal_name
from mirrorflow_core.permissions import DESCRIBE, HEARTBEATS, LOG, READ, READ_LOG
from mirrorflow_core.settings import BeatSettings, CheckpointSettings, HeartbeatSettings
from mirrorflow_core.topics.topic_acls import Operation
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.mirror_log import TOPIC_CONFIGS
from mirrorflow_replicator.config.plugins import make_group_selection, make_replication_policy

# Each group costs a request or two, and permissions are usually granted by pattern, so a sample is enough.
GROUPS_ASKED_MAX = 100


def syncs_topic(settings: CheckpointSettings) -> str:
    """Returns the offset-syncs topic that the connector reads, on the side given by `syncs_on_source`."""
    other = settings.target_alias if settings.syncs_on_source else settings.source_alias
    return make_replication_policy(settings).offset_syncs_topic(other)


def checkpoints_topic(settings: CheckpointSettings) -> str:
    """Returns the topic of checkpoints, on the target."""
    return make_replication_policy(settings).checkpoints_topic(settings.source_alias)


def checkpoint_topics(settings: CheckpointSettings) -> tuple[Needed, Needed]:
    """Returns topic -> operations needed on the source and on the target, without the copies."""
    syncs: Needed = {syncs_topic(settings): READ_LOG.existing}
    own = READ_LOG if settings.emit_s is None else LOG
    target: Needed = {
        checkpoints_topic(settings): own.existing,
        offset_map_topic(settings.source_alias): READ_LOG.existing,
    }
    return (syncs, target) if settings.syncs_on_source else ({}, {**target, **syncs})


async def check_source_groups(
    source: Cluster, settings: CheckpointSettings, findings: Findings
) -> tuple[str, ...]:
    """Returns the source groups whose offsets are synchronised.

    Reports groups that the flow names and the user may not describe.
    """
    selects = make_group_selection(settings).selects
    listed = await groups.list_groups(source)
    selected = tuple(
        name for name, group in sorted(listed.items()) if selects(name) and group.is_consumer_group
    )
    named = (literal_name(pattern) for pattern in settings.groups)
    hidden = [name for name in named if name and name not in listed and selects(name)]
    await _check_groups(source, settings.source_alias, hidden, {DESCRIBE: groups.may_describe}, findings)
    findings.fact(f"{len(selected)} consumer groups of {settings.source_alias} match")
    return selected


async def check_target_groups(
    target: Cluster, settings: CheckpointSettings, names: Sequence[str], findings: Findings
) -> None:
    """Reports permissions that are missing to commit offsets of the groups *names* on the target."""
    if settings.sync_s is None:
        return
    # READ implies DESCRIBE, so DESCRIBE is not requested separately.
    await _check_groups(target, settings.target_alias, names, {READ: groups.may_read}, findings)


async def _check_groups(
    cluster: Cluster,
    alias: str,
    names: Sequence[str],
    needed: Mapping[Operation, Callable[[Cluster, str], Awaitable[bool]]],
    findings: Findings,
) -> None:
    asked = names[:GROUPS_ASKED_MAX]
    if len(asked) < len(names):
        findings.note(f"Of {len(names)} groups, permissions on {alias} are asked for the first {len(asked)}.")
    for operation, may in needed.items():
        answers = await asyncio.gather(*(may(cluster, name) for name in asked))
        missing = [name for name, allowed in zip(asked, answers, strict=True) if not allowed]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            findings.problem(refused(alias, operation.word, f"group {missing[0]}{more}"))


def own_topics(
    checkpoint: CheckpointSettings | None, heartbeat: HeartbeatSettings | None
) -> list[admin.NewTopic]:
    """Returns the topics that both connectors would create on the target."""
    found = {}
    if checkpoint is not None and checkpoint.emit_s is not None:
        found[checkpoints_topic(checkpoint)] = checkpoint.replication_factor
    if heartbeat is not None and any(_is_to_target(heartbeat, beat) for beat in heartbeat.beats):
        found[heartbeats_topic(heartbeat)] = heartbeat.replication_factor
    return [_topic(name, factor) for name, factor in found.items()]


def heartbeat_topics(settings: HeartbeatSettings) -> Needed:
    """Returns topic -> operations that the connector needs on the target."""
    if not any(_is_to_target(settings, beat) for beat in settings.beats):
        return {}
    return {heartbeats_topic(settings): HEARTBEATS.existing}


async def check_heartbeats_on_source(
    source: Cluster, settings: HeartbeatSettings, findings: Findings
) -> None:
    """Notes what prevents heartbeats on the source; a note only, because records are copied all the same."""
    if all(_is_to_target(settings, beat) for beat in settings.beats):
        return
    topic, alias = heartbeats_topic(settings), settings.source_alias

    def say(sentence: str) -> None:
        findings.note(f"No heartbeats to {alias}: {sentence}")

    await lacking(source, {topic: HEARTBEATS.existing}, alias, findings, say=say)
    await source.refresh([topic])
    if source.leader(topic, 0) is not None:
        return
    new = _topic(topic, settings.replication_factor)
    refusal = (await admin.create_topics(source, [new], validate_only=True))[topic]
    if refusal is None:
        findings.would("create", [f"{topic} of {alias}"])
    elif refusal.code in UNAUTHORIZED:
        say(refused(alias, "Create", f"topic {topic}"))
    else:
        say(f"topic {topic} could not be created: {refusal}.")


def heartbeats_topic(settings: HeartbeatSettings) -> str:
    """Returns the topic of heartbeats; it has the same name on both sides."""
    return make_replication_policy(settings).heartbeats_topic()


def _is_to_target(settings: HeartbeatSettings, beat: BeatSettings) -> bool:
    return beat.target_alias == settings.target_alias


def _topic(name: str, replication_factor: int) -> admin.NewTopic:
    return admin.NewTopic(
        name=name, partitions=1, replication_factor=replication_factor, configs=TOPIC_CONFIGS
    )
