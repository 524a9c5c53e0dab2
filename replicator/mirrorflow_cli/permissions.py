"""What the flow's user may do on both clusters, asked without doing any of it.

KIP-430's authorized operations, which are all of them where no authorizer is set; a broker tells them of topics that do
not exist yet, too. What must be allowed is what `mirrorflow acls` prints (`grants`), but for Create, which is `creation`'s.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirrorflow_cli.findings import Findings
from mirrorflow_cli.guarantee import check_guarantee
from mirrorflow_replicator.connect.offset_map_records import offset_map_topic
from mirrorflow_replicator.connect.offset_syncs import offset_syncs_topic
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.errors import NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_replicator.flow.identity import identity_topic, transactional_id
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.acls import CLUSTER_RESOURCE
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import OffsetStore, SourceSettings

# AclOperation codes (org.apache.kafka.common.acl.AclOperation), by the names that kafka-acls has for them.
OPERATIONS = {8: "Describe", 3: "Read", 4: "Write", 7: "Alter", 10: "DescribeConfigs", 11: "AlterConfigs"}
DESCRIBE, READ, WRITE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS = OPERATIONS
# Topic -> operations.
Needed = Mapping[str, tuple[int, ...]]
_NAME = re.compile(r"(?:[a-zA-Z0-9_-]|\\?\.)+")


async def check_source(
    source: Cluster, settings: SourceSettings, topics: Mapping[str, int], more: Needed, findings: Findings
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Find what is lacking on the source; the settings of those of *topics* that show them.

    *more* is what other connectors need besides.
    """
    findings.fact(f"{len(topics)} topics of {settings.source_alias} match")
    wanted = [*topics, *(name for name in _names(settings) if name not in topics)]
    needed: dict[str, tuple[int, ...]] = dict.fromkeys(wanted, (DESCRIBE, READ, DESCRIBE_CONFIGS))
    if settings.syncs is not None and settings.syncs.on_source:
        needed[offset_syncs_topic(settings)] = (DESCRIBE, WRITE)
    missing = await lacking(source, _together(needed, more), settings.source_alias, findings)
    if not topics and not missing:
        findings.problem(
            f"No topic of {settings.source_alias} matches {', '.join(settings.topics)}, or Describe on them is missing;"
            " correct spec.topics.include, or grant what `mirrorflow acls` prints."
        )
    if settings.sync_acls_s is not None:
        await _check_cluster(source, settings.source_alias, (DESCRIBE,), findings)
    silent = missing.get(DESCRIBE_CONFIGS, [])
    return await admin.describe_topic_configs(source, [topic for topic in topics if topic not in silent])


async def check_target(
    target: Cluster, settings: SourceSettings, topics: Iterable[str], more: Needed, findings: Findings
) -> None:
    """Find what is lacking on the target for the copies of *topics*, the internal topics and the flow's identity.

    *more* is what other connectors need besides.
    """
    remote = make_selection(settings).target_topic
    synced: tuple[int, ...] = ()
    if settings.sync_configs_s is not None:
        synced = (DESCRIBE_CONFIGS,) if settings.configs_report_only else (DESCRIBE_CONFIGS, ALTER_CONFIGS)
    needed = {remote(topic): (DESCRIBE, READ, WRITE, ALTER, *synced) for topic in topics}
    needed[identity_topic(settings.source_alias)] = (DESCRIBE, READ, WRITE)
    if settings.syncs is not None:
        needed[offset_map_topic(settings.source_alias)] = (DESCRIBE, READ, WRITE)
        if not settings.syncs.on_source:
            needed[offset_syncs_topic(settings)] = (DESCRIBE, WRITE)
    if settings.offsets.store is OffsetStore.KAFKA:
        needed[settings.offsets.topic] = (DESCRIBE, READ, WRITE, DESCRIBE_CONFIGS)
    await lacking(target, _together(needed, more), settings.target_alias, findings)
    identity = transactional_id(settings.source_alias)
    may_write = await admin.may_write_as(target, identity)
    if not may_write:
        findings.problem(refused(settings.target_alias, "Write", f"transactional id {identity}"))
    await check_guarantee(target, settings, findings, may_write=may_write)
    if settings.sync_acls_s is not None:
        changing = () if settings.acls_report_only else (ALTER,)
        await _check_cluster(target, settings.target_alias, (DESCRIBE, *changing), findings)


async def _check_cluster(cluster: Cluster, alias: str, needed: Sequence[int], findings: Findings) -> None:
    """Find what is lacking on the cluster itself, which ACLs are seen and changed by."""
    try:
        allowed = await admin.cluster_operations(cluster)
    except UnsupportedBrokerError as error:
        findings.note(f"Permissions on {alias} itself cannot be asked for: {error}")
        return
    # Who may not describe the cluster is told nothing else of it.
    for operation in needed if allowed else (DESCRIBE,):
        if operation not in allowed:
            findings.problem(refused(alias, OPERATIONS[operation], CLUSTER_RESOURCE))


def refused(cluster: str, operation: str, resource: str) -> str:
    """The sentence that `run` would log and REST would show."""
    return str(NotAuthorizedError(cluster=cluster, operation=operation, resource=resource))


def first_of(topics: Sequence[str]) -> str:
    """The first of *topics*, and how many more there are."""
    return f"topic {topics[0]}" + (f" and {len(topics) - 1} more" if len(topics) > 1 else "")


def _names(settings: SourceSettings) -> list[str]:
    """The topics that are wanted by name: without Describe on them they are not in any list."""
    selects = make_selection(settings).selects
    names = [pattern.replace("\\", "") for pattern in settings.topics if _NAME.fullmatch(pattern)]
    return [name for name in names if selects(name)]


async def lacking(
    cluster: Cluster,
    needed: Needed,
    alias: str,
    findings: Findings,
    *,
    say: Callable[[str], None] | None = None,
) -> dict[int, list[str]]:
    """Operation -> topics on which it is not allowed, which are told; nothing from brokers that do not tell.

    *say* tells; by default each is a problem.
    """
    try:
        allowed = await admin.topic_operations(cluster, list(needed))
    except UnsupportedBrokerError as error:
        findings.note(f"Permissions cannot be asked for: {error}")
        return {}
    found: dict[int, list[str]] = {}
    for topic, operations in needed.items():
        if topic not in allowed:
            continue
        # Who may not describe a topic is told nothing else of it.
        for operation in operations if allowed[topic] else (DESCRIBE,):
            if operation not in allowed[topic]:
                found.setdefault(operation, []).append(topic)
    for operation in sorted(found, key=list(OPERATIONS).index):
        (say or findings.problem)(refused(alias, OPERATIONS[operation], first_of(found[operation])))
    return found


def _together(one: Needed, other: Needed) -> Needed:
    return {
        topic: tuple(dict.fromkeys((*one.get(topic, ()), *other.get(topic, ()))))
        for topic in {**one, **other}
    }
