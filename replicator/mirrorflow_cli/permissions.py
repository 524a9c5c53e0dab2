"""What a flow may do on both clusters, and what it would create there.

KIP-430's authorized operations, which are all of them where no authorizer is set; what would be created, the target's
controller is asked to validate.
"""

from collections.abc import Iterable, Sequence

from mirrorflow_cli.clusters import target_plan, topic_sizes
from mirrorflow_cli.findings import Findings, show_some
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.errors import (
    NotAuthorizedError,
    UnsupportedBrokerError,
)
from mirrorflow_replicator.flow.identity import identity_topic
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import OffsetStore, SourceSettings

# AclOperation codes (org.apache.kafka.common.acl.AclOperation).
OPERATIONS = {3: "READ", 4: "WRITE", 7: "ALTER", 8: "DESCRIBE", 10: "DESCRIBE_CONFIGS", 11: "ALTER_CONFIGS"}
READ, WRITE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = OPERATIONS


async def check_source(
    source: Cluster, settings: SourceSettings, topics: dict[str, int], findings: Findings
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Find what is lacking on the source; the settings of *topics* that it shows."""
    if not topics:
        findings.problem(
            f"No topic of {settings.source_alias} matches {', '.join(settings.topics)}, or Describe on them is missing;"
            " correct spec.topics.include, or grant what `mirrorflow acls` prints."
        )
        return {}
    findings.fact(f"{len(topics)} topics of {settings.source_alias} match")
    await _operations(source, list(topics), (READ, DESCRIBE), findings)
    try:
        return await admin.describe_topic_configs(source, list(topics))
    except NotAuthorizedError as error:
        findings.problem(str(error))
        return {}


async def check_target(
    target: Cluster,
    settings: SourceSettings,
    topics: dict[str, int],
    configs: dict[str, tuple[ConfigEntry, ...]],
    findings: Findings,
) -> None:
    """Find what is lacking on the target, and show what would be created and grown."""
    present = await topic_sizes(target)
    planned = target_plan(settings, topics, present, configs)
    for topic, other in planned.clashes.items():
        findings.problem(f"Topic {topic} would have the target name of {other}; exclude one of them.")
    remote = make_selection(settings).target_topic
    existing = [name for topic in topics if (name := remote(topic)) in present]
    await _operations(target, existing, (READ, WRITE, DESCRIBE, *_settings_operations(settings)), findings)
    await _operations(target, [growth.name for growth in planned.grow], (ALTER,), findings)
    internal = [identity_topic(settings.source_alias)]
    if settings.offsets.store is OffsetStore.KAFKA:
        internal.append(settings.offsets.topic)
    await _operations(
        target, [name for name in internal if name in present], (READ, WRITE, DESCRIBE), findings
    )
    wanted = [
        admin.NewTopic(
            name=new.name,
            partitions=new.partitions,
            replication_factor=new.replication_factor,
            configs=new.configs,
        )
        for new in planned.create
    ] + [
        admin.NewTopic(name=name, partitions=1, replication_factor=settings.offsets.replication_factor)
        for name in internal
        if name not in present
    ]
    refusals = await admin.create_topics(target, wanted, validate_only=True) if wanted else {}
    for name, refusal in refusals.items():
        if refusal is not None:
            findings.problem(
                f"Topic {name} could not be created on {settings.target_alias}: {refusal.message}."
            )
    show_some("would be created", [new.name for new in wanted if refusals.get(new.name) is None])
    show_some("would grow", [f"{growth.name} to {growth.total} partitions" for growth in planned.grow])


def _settings_operations(settings: SourceSettings) -> tuple[int, ...]:
    return () if settings.sync_configs_s is None else (DESCRIBE_CONFIGS, ALTER_CONFIGS)


async def _operations(
    cluster: Cluster, topics: Sequence[str], needed: Iterable[int], findings: Findings
) -> None:
    if not topics:
        return
    try:
        allowed = await admin.topic_operations(cluster, topics)
    except UnsupportedBrokerError as error:
        print(f"note  Permissions cannot be asked for: {error}")
        return
    for operation in needed:
        lacking = [topic for topic in topics if operation not in allowed.get(topic, frozenset())]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            findings.problem(
                f"Cluster {cluster.alias} does not allow {OPERATIONS[operation]} on topic {lacking[0]}{more};"
                " grant what `mirrorflow acls` prints."
            )
