"""What a flow would create and let grow on the target; the target's controller validates it and does nothing."""

from collections.abc import Sequence

from mirrorflow_cli.clusters import target_plan, topic_sizes
from mirrorflow_cli.findings import Findings, show_some
from mirrorflow_cli.permissions import first_of, refused
from mirrorflow_replicator.connect.offset_map_records import offset_map_topic
from mirrorflow_replicator.connect.offset_syncs import offset_syncs_topic
from mirrorflow_replicator.flow.identity import identity_topic
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from mirrorflow_replicator.kafka.identity import TOPIC_CONFIGS
from mirrorflow_replicator.kafka.mirror_log import TOPIC_CONFIGS as MIRROR_TOPIC_CONFIGS
from mirrorflow_replicator.settings import OffsetStore, SourceSettings

UNAUTHORIZED = {TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}


async def check_creation(
    target: Cluster,
    settings: SourceSettings,
    topics: dict[str, int],
    configs: dict[str, tuple[ConfigEntry, ...]],
    more: Sequence[admin.NewTopic],
    findings: Findings,
) -> None:
    """Find what could not be created for *topics* of the source, and show what would be created and grown.

    *more* are topics of the other connectors.
    """
    present = await topic_sizes(target)
    planned = target_plan(settings, topics, present, configs)
    for topic, other in planned.clashes.items():
        findings.problem(f"Topic {topic} would have the target name of {other}; exclude one of them.")
    wanted = [
        admin.NewTopic(
            name=new.name,
            partitions=new.partitions,
            replication_factor=new.replication_factor,
            configs=new.configs,
        )
        for new in planned.create
    ] + [topic for topic in (*_internal(settings), *more) if topic.name not in present]
    refusals = await admin.create_topics(target, wanted, validate_only=True) if wanted else {}
    forbidden = []
    for name, refusal in refusals.items():
        if refusal is not None and refusal.code in UNAUTHORIZED:
            forbidden.append(name)
        elif refusal is not None:
            why = " ".join(refusal.message.split()).rstrip(".")
            findings.problem(f"Topic {name} could not be created on {settings.target_alias}: {why}.")
    if forbidden:
        findings.problem(refused(settings.target_alias, "Create", first_of(forbidden)))
    show_some("would be created", [new.name for new in wanted if refusals.get(new.name) is None])
    show_some("would grow", [f"{growth.name} to {growth.total} partitions" for growth in planned.grow])


def _internal(settings: SourceSettings) -> list[admin.NewTopic]:
    """The topics of identity, positions, the map of offsets and offset syncs, as the flow itself would create them."""
    offsets = settings.offsets
    topics = [
        admin.NewTopic(
            name=identity_topic(settings.source_alias),
            partitions=1,
            replication_factor=offsets.replication_factor,
            configs=TOPIC_CONFIGS,
        )
    ]
    if offsets.store is OffsetStore.KAFKA:
        topics.append(
            admin.NewTopic(
                name=offsets.topic,
                partitions=offsets.partitions,
                replication_factor=offsets.replication_factor,
                configs={**offsets.topic_configs, "cleanup.policy": "compact"},
            )
        )
    if settings.syncs is not None:
        topics.append(
            admin.NewTopic(
                name=offset_map_topic(settings.source_alias),
                partitions=1,
                replication_factor=offsets.replication_factor,
                configs=MIRROR_TOPIC_CONFIGS,
            )
        )
    if settings.syncs is not None and not settings.syncs.on_source:
        topics.append(
            admin.NewTopic(
                name=offset_syncs_topic(settings),
                partitions=1,
                replication_factor=settings.syncs.replication_factor,
                configs=MIRROR_TOPIC_CONFIGS,
            )
        )
    return topics
