"""Checks the permissions of the flow's users on both clusters; changes nothing.

Uses KIP-430's authorized operations: without an authorizer they include every operation, and a broker returns
them for topics that do not exist yet, too. `mirrorflow_core.topics.topic_acls` has the operations; `check_creation` checks
Create.

Permissions are requested for each group separately, also for groups that do not exist yet. A missing
permission is a problem, except for heartbeats on the source: `run` reports that refusal and continues copying.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mirrorflow_cli.clusters import SelectedTopics
from mirrorflow_cli.output import Findings
from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.java.cloud_logins import iam_action
from mirrorflow_core.java.patterns import literal_name
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.settings import (
    BeatSettings,
    CheckpointSettings,
    HeartbeatSettings,
    OffsetStore,
    SourceSettings,
)
from mirrorflow_core.topics.retention_hold import identity_topic
from mirrorflow_core.topics.topic_acls import (
    ACLS_READ,
    ACLS_WRITTEN,
    ALTER,
    ALTER_CONFIGS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    HEARTBEATS,
    LOG,
    READ,
    READ_LOG,
    SOURCE_TOPIC,
    STORE,
    TOPIC,
    WRITE,
    WRITTEN_SYNCS,
    Access,
    AclBinding,
    Operation,
    copied_topic,
    plan_acls,
)
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_core.wire.error_codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_kafka.admin import admin, groups, share_groups
from mirrorflow_kafka.admin.acls import CLUSTER_RESOURCE
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.own_topics import new_mirror_topic
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_group_selection, make_replication_policy, make_selection
from mirrorflow_replicator.connectors.acl_sync import acl_rules, doubtful_access
from mirrorflow_replicator.http.progress_text import counted

UNAUTHORIZED = {TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}
# In the order in which missing ones are reported.
OPERATIONS = (DESCRIBE, READ, WRITE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS)
# Topic -> operations.
Needed = Mapping[str, tuple[Operation, ...]]
# Each group costs a request or two, and permissions are usually granted by pattern, so a sample is enough.
GROUPS_CHECKED_MAX = 100


async def check_source(
    source: Cluster,
    settings: SourceSettings,
    selected: SelectedTopics,
    also_needed: Needed,
    findings: Findings,
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Reports missing permissions on the source, and returns the configs of the *selected* topics.

    Configs that may not be described are left out. *also_needed* is what the other connectors need.
    """
    topics = selected.topics
    verb = "matches" if len(topics) == 1 else "match"
    findings.fact(f"{counted(len(topics), 'topic')} of {settings.source_alias} {verb}")
    wanted = [*topics, *(name for name in _names(settings) if name not in topics)]
    needed: dict[str, tuple[Operation, ...]] = dict.fromkeys(wanted, SOURCE_TOPIC.existing)
    if settings.syncs is not None and settings.syncs.on_source:
        needed[offset_syncs_topic(settings, on_source=settings.syncs.on_source)] = WRITTEN_SYNCS.existing
    missing = await report_missing(source, _merge_needed(needed, also_needed), findings)
    if selected.nothing_selected is not None and not missing:
        findings.problem(selected.nothing_selected)
    if selected.own_alias is not None:
        findings.note(selected.own_alias)
    if settings.sync_acls_s is not None:
        await _check_cluster(source, settings.source_alias, ACLS_READ, findings)
    not_describable = missing.get(DESCRIBE_CONFIGS, [])
    return await admin.describe_topic_configs(
        source, [topic for topic in topics if topic not in not_describable]
    )


async def check_target(
    target: Cluster,
    settings: SourceSettings,
    topics: Iterable[str],
    also_needed: Needed,
    findings: Findings,
    *,
    has_owner: bool,
) -> None:
    """Reports missing permissions on the target: on the copies of *topics*, the internal topics and the cluster.

    *also_needed* is what the other connectors need. *has_owner*: the flow has a claims topic.
    """
    copy_name = make_selection(settings).target_topic
    syncs_configs = settings.sync_configs_s is not None
    on_copies = copied_topic(
        reads_configs=syncs_configs, alters_configs=syncs_configs and not settings.configs_report_only
    )
    needed = {copy_name(topic): on_copies.existing for topic in topics}
    if has_owner:
        needed[claims_topic(settings.source_alias)] = LOG.existing
    if settings.sync_acls_s is not None and not settings.acls_report_only:
        needed[identity_topic(settings.source_alias)] = LOG.existing  # it records which ACLs the flow has set
    if settings.syncs is not None:
        needed[offset_map_topic(settings.source_alias)] = LOG.existing
        if not settings.syncs.on_source:
            needed[offset_syncs_topic(settings, on_source=settings.syncs.on_source)] = WRITTEN_SYNCS.existing
    if settings.offsets.store is OffsetStore.KAFKA:
        needed[settings.offsets.topic] = STORE.existing
    await report_missing(target, _merge_needed(needed, also_needed), findings)
    if settings.sync_acls_s is not None:
        access = ACLS_READ if settings.acls_report_only else ACLS_WRITTEN
        await _check_cluster(target, settings.target_alias, access, findings)


async def source_acls(source: Cluster, settings: SourceSettings) -> tuple[AclBinding, ...]:
    """Returns the ACLs that the flow would copy from; none where they are not synchronised or not shown."""
    if settings.sync_acls_s is None:
        return ()
    try:
        return await admin.describe_acls(source, resource_type=TOPIC)
    except (NotAuthorizedError, UnsupportedBrokerError, BrokerError):
        return ()  # reported as missing permission, or the source has no authorizer


async def check_acls(
    target: Cluster,
    settings: SourceSettings,
    topics: Iterable[str],
    acls: Sequence[AclBinding],
    findings: Findings,
) -> None:
    """Notes copied *acls* that may deny the flow its own topics on the target."""
    if settings.sync_acls_s is None:
        return
    rules = acl_rules(settings, make_selection(settings))
    try:
        there = await admin.describe_acls(target, resource_type=TOPIC)
        plan = plan_acls(source=acls, target=there, owned=(), topics=tuple(topics), rules=rules)
        doubt = await doubtful_access(target, plan.create, there, rules)
    except (NotAuthorizedError, UnsupportedBrokerError, BrokerError):
        return  # reported as missing permission, or the target has no authorizer
    if doubt:
        findings.note(doubt)


async def _check_cluster(cluster: Cluster, alias: str, access: Access, findings: Findings) -> None:
    """Reports missing permissions on the cluster itself, which govern describing and altering ACLs."""
    try:
        allowed = await admin.cluster_operations(cluster)
    except UnsupportedBrokerError as error:
        findings.note(f"Permissions on {alias} itself cannot be queried: {error}")
        return
    # Without Describe on the cluster the broker returns no operations at all.
    for operation in access.needed if allowed else (DESCRIBE,):
        if operation not in allowed:
            findings.problem(missing_acl_message(cluster, operation.acl_name, CLUSTER_RESOURCE))


def missing_acl_message(cluster: Cluster, operation: str, resource: str) -> str:
    """Returns the message for a missing permission, as `run` logs it and the REST API shows it; with IAM's name for it."""
    message = str(NotAuthorizedError(cluster=cluster.alias, operation=operation, resource=resource))
    action = iam_action(operation, resource) if cluster.uses_aws_iam else None
    return f"{message} In the IAM policy it is {action}." if action else message


def first_of(topics: Sequence[str]) -> str:
    """Returns the first of *topics*, and how many more there are."""
    return f"topic {topics[0]}" + (f" and {len(topics) - 1} more" if len(topics) > 1 else "")


def _names(settings: SourceSettings) -> list[str]:
    """Returns the topics that the flow selects by name; without Describe they appear in no list of topics."""
    selection = make_selection(settings)
    return [name for name in selection.named if selection.selects(name)]


async def report_missing(
    cluster: Cluster,
    needed: Needed,
    findings: Findings,
    *,
    report: Callable[[str], None] | None = None,
) -> dict[Operation, list[str]]:
    """Reports missing operations and returns operation -> the topics that lack it.

    Returns nothing if the brokers do not report authorized operations. *report* reports; the default adds a
    problem.
    """
    try:
        allowed = await admin.topic_operations(cluster, list(needed))
    except UnsupportedBrokerError as error:
        findings.note(f"Permissions cannot be queried: {error}")
        return {}
    lacking: dict[Operation, list[str]] = {}
    for topic, operations in needed.items():
        if topic not in allowed:
            continue
        # Without Describe on a topic the broker returns no operations for it at all.
        for operation in operations if allowed[topic] else (DESCRIBE,):
            if operation not in allowed[topic]:
                lacking.setdefault(operation, []).append(topic)
    for operation in sorted(lacking, key=OPERATIONS.index):
        (report or findings.problem)(
            missing_acl_message(cluster, operation.acl_name, first_of(lacking[operation]))
        )
    return lacking


def _merge_needed(needed: Needed, other: Needed) -> Needed:
    return {
        topic: tuple(dict.fromkeys((*needed.get(topic, ()), *other.get(topic, ()))))
        for topic in {**needed, **other}
    }


def checkpoints_topic(settings: CheckpointSettings) -> str:
    """Returns the topic of checkpoints, on the target."""
    return make_replication_policy(settings).checkpoints_topic(settings.source_alias)


def checkpoint_topics(settings: CheckpointSettings) -> tuple[Needed, Needed]:
    """Returns topic -> operations needed on the source and on the target, without the copies."""
    syncs: Needed = {offset_syncs_topic(settings, on_source=settings.syncs_on_source): READ_LOG.existing}
    own = READ_LOG if settings.emit_s is None else LOG
    target: Needed = {
        checkpoints_topic(settings): own.existing,
        offset_map_topic(settings.source_alias): READ_LOG.existing,
    }
    return (syncs, target) if settings.syncs_on_source else ({}, {**target, **syncs})


async def check_source_groups(
    source: Cluster, settings: CheckpointSettings, findings: Findings
) -> tuple[Group, ...]:
    """Returns the source groups whose offsets are synchronised: consumer groups and share groups.

    Reports groups that the flow names and the user may not describe.
    """
    selects = make_group_selection(settings).selects
    listed = await groups.list_groups(source)
    consumers = [group for name, group in sorted(listed.items()) if group.is_consumer_group and selects(name)]
    share = [group for name, group in sorted(listed.items()) if group.is_share_group and selects(name)]
    named = (literal_name(pattern) for pattern in settings.groups)
    hidden = [name for name in named if name and name not in listed and selects(name)]
    await _check_groups(source, settings.source_alias, hidden, {DESCRIBE: groups.may_describe}, findings)
    for kind, selected in (("consumer group", consumers), ("share group", share)):
        verb = "matches" if len(selected) == 1 else "match"
        if selected or selected is consumers:
            findings.fact(f"{counted(len(selected), kind)} of {settings.source_alias} {verb}")
    return (*consumers, *share)


async def check_target_groups(
    target: Cluster, settings: CheckpointSettings, selected: Sequence[Group], findings: Findings
) -> None:
    """Reports permissions that are missing to commit offsets of the groups *selected* on the target, and share groups that it refuses."""
    if settings.sync_s is None:
        return
    # READ implies DESCRIBE, so DESCRIBE is not requested separately.
    names = [group.name for group in selected]
    await _check_groups(target, settings.target_alias, names, {READ: groups.may_read}, findings)
    if share := [group.name for group in selected if group.is_share_group]:
        try:
            await share_groups.fetch_start_offsets(target, share[0])
        except UnsupportedBrokerError as error:
            more = f" and {len(share) - 1} more" if len(share) > 1 else ""
            findings.note(f"Share group {share[0]}{more} cannot follow to {settings.target_alias}: {error}")
        except NotAuthorizedError:
            pass  # reported above


async def _check_groups(
    cluster: Cluster,
    alias: str,
    names: Sequence[str],
    needed: Mapping[Operation, Callable[[Cluster, str], Awaitable[bool]]],
    findings: Findings,
) -> None:
    checked = names[:GROUPS_CHECKED_MAX]
    if len(checked) < len(names):
        findings.note(
            f"Permissions on {alias} are checked for the first {len(checked)} of {len(names)} groups only."
        )
    for operation, is_allowed in needed.items():
        responses = await asyncio.gather(*(is_allowed(cluster, name) for name in checked))
        missing = [name for name, allowed in zip(checked, responses, strict=True) if not allowed]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            findings.problem(missing_acl_message(cluster, operation.acl_name, f"group {missing[0]}{more}"))


def own_topics(
    checkpoint: CheckpointSettings | None, heartbeat: HeartbeatSettings | None
) -> list[admin.NewTopic]:
    """Returns the topics that both connectors would create on the target."""
    factors = {}
    if checkpoint is not None and checkpoint.emit_s is not None:
        factors[checkpoints_topic(checkpoint)] = checkpoint.replication_factor
    if heartbeat is not None and any(_is_to_target(heartbeat, beat) for beat in heartbeat.beats):
        factors[heartbeats_topic(heartbeat)] = heartbeat.replication_factor
    return [new_mirror_topic(name, factor) for name, factor in factors.items()]


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

    def report(sentence: str) -> None:
        findings.note(f"No heartbeats to {alias}: {sentence}")

    await report_missing(source, {topic: HEARTBEATS.existing}, findings, report=report)
    await source.refresh([topic])
    if source.leader(topic, 0) is not None:
        return
    new = new_mirror_topic(topic, settings.replication_factor)
    refusal = (await admin.create_topics(source, [new], validate_only=True))[topic]
    if refusal is None:
        findings.would("create", [f"{topic} of {alias}"])
    elif refusal.code in UNAUTHORIZED:
        report(missing_acl_message(source, "Create", f"topic {topic}"))
    else:
        report(f"topic {topic} could not be created: {refusal}.")


def heartbeats_topic(settings: HeartbeatSettings) -> str:
    """Returns the topic of heartbeats; it has the same name on both sides."""
    return make_replication_policy(settings).heartbeats_topic()


def _is_to_target(settings: HeartbeatSettings, beat: BeatSettings) -> bool:
    return beat.target_alias == settings.target_alias
