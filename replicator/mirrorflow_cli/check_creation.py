"""Checks which topics the flow would create and grow, and which of them the target would refuse; changes nothing."""

from collections.abc import Mapping, Sequence

from mirrorflow_cli.check_permissions import UNAUTHORIZED, first_of, missing_acl_message
from mirrorflow_cli.check_record_limits import SourceTopics, check_record_limits
from mirrorflow_cli.clusters import target_plan, topic_sizes
from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, changes_by_copy, compacted_alone
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.configs import alter_to_accepted_settings, create_with_accepted_settings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_config_rules, make_selection
from mirrorflow_replicator.connectors.internal_topics import correct_topic_configs, is_internal
from mirrorflow_replicator.http.progress_text import counted

LIST_CLIENT_METRICS = 74  # an API key since Kafka 3.7
MIN_IN_SYNC, DEFAULT_FACTOR = "min.insync.replicas", "default.replication.factor"


async def check_creation(
    target: Cluster,
    settings: SourceSettings,
    source: SourceTopics,
    further_topics: Sequence[admin.NewTopic],
    findings: Findings,
) -> None:
    """Reports which copies of the *source* could not be created, and what would be created and grown.

    *further_topics* are the topics that connectors create for themselves.
    """
    present = await topic_sizes(target)
    planned = target_plan(settings, source.sizes, present, source.configs)
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
    ] + [topic for topic in further_topics if topic.name not in present]
    outcome = await create_with_accepted_settings(target, wanted, validate_only=True)
    for sentence in outcome.settings:
        findings.note(sentence)
    await _check_replicas(
        target,
        [new for new in wanted if new.name not in outcome.refused],
        [name for name in _copies(settings, source.sizes, further_topics) if name in present],
        findings,
    )
    forbidden = []
    for name, refusal in outcome.refused.items():
        if refusal.code in UNAUTHORIZED:
            forbidden.append(name)
        else:
            findings.problem(f"Topic {name} could not be created on {settings.target_alias}: {refusal}.")
    if forbidden:
        findings.problem(missing_acl_message(target, "Create", first_of(forbidden)))
    kept = [
        topic for topic in further_topics if is_internal(topic.name) or topic.name == settings.offsets.topic
    ]
    await check_retention(target, [topic for topic in kept if topic.name in present], findings)
    new = {
        topic.name: tuple(ConfigChange(name=name, value=value) for name, value in topic.configs.items())
        for topic in planned.create
    }
    await _check_settings(target, settings, present, source, new, findings)
    findings.would("create", [new.name for new in wanted if new.name not in outcome.refused])
    findings.would(
        "grow", [f"{growth.name} to {counted(growth.total, 'partition')}" for growth in planned.grow]
    )


async def _check_replicas(
    target: Cluster, new: Sequence[admin.NewTopic], existing: Sequence[str], findings: Findings
) -> None:
    """Reports *new* and *existing* topics with fewer replicas than writes need.

    Since Kafka 3.7 brokers require no more replicas in sync than there are (KAFKA-15583).
    """
    node_id = min(target.metadata.brokers)
    if LIST_CLIENT_METRICS in (await target.connection(node_id)).versions:
        return
    try:
        brokers = await admin.describe_broker_configs(target, node_id, [MIN_IN_SYNC, DEFAULT_FACTOR])
        topics = await admin.describe_topic_configs(target, existing)
    except NotAuthorizedError:
        return  # `run` names both settings when writes are refused
    least, usual = (_number(brokers.get(name)) for name in (MIN_IN_SYNC, DEFAULT_FACTOR))
    replicas = {
        topic.name: (
            usual if topic.replication_factor == -1 else topic.replication_factor,
            int(topic.configs.get(MIN_IN_SYNC, least)),
        )
        for topic in new
    }
    for name, entries in topics.items():
        needed = _number(next((entry for entry in entries if entry.name == MIN_IN_SYNC), None))
        partitions = target.metadata.topics[name].partitions.values()
        replicas[name] = (min((len(partition.replicas) for partition in partitions), default=needed), needed)
    for sentence in too_few_replicas(replicas, target.alias):
        findings.problem(sentence)


def too_few_replicas(replicas: Mapping[str, tuple[int, int]], alias: str) -> list[str]:
    """Returns a sentence for topics that accept no write; *replicas*: topic -> replicas, `min.insync.replicas`."""
    short: dict[tuple[int, int], list[str]] = {}
    for name, (count, needed) in replicas.items():
        if count < needed:
            short.setdefault((count, needed), []).append(name)
    return [
        f"Replicas on {alias} are too few for {first_of(names)}: {count} (replication.factor), and no write is "
        f"accepted with fewer than {needed} in sync (min.insync.replicas): raise the first or lower the second."
        for (count, needed), names in short.items()
    ]


def _number(entry: ConfigEntry | None) -> int:
    return int(entry.value) if entry is not None and entry.value else 1


async def _check_settings(
    target: Cluster,
    settings: SourceSettings,
    present: dict[str, int],
    source: SourceTopics,
    new: Mapping[str, tuple[ConfigChange, ...]],
    findings: Findings,
) -> None:
    """Notes what the target would refuse: settings of existing copies, and records of existing and *new* ones.

    *new* is copy -> its settings. Copies that are compacted alone refuse records, too.
    """
    remote, configs = make_selection(settings).target_topic, source.configs
    names = {topic: remote(topic) for topic in configs if remote(topic) in present}
    try:
        existing = await admin.describe_topic_configs(target, list(names.values()))
        changes = {}
        if settings.sync_configs_s is not None:
            changes = changes_by_copy(names, configs, existing, make_config_rules(settings))
        accepted, outcome = await alter_to_accepted_settings(target, changes, validate_only=True)
    except (NotAuthorizedError, UnsupportedBrokerError):
        return  # reported among the permissions and the brokers' APIs
    applied = {} if settings.configs_report_only else accepted
    for sentence in (*outcome.settings, *compacted_alone(names, configs, existing, applied)):
        findings.note(sentence)
    names |= {topic: remote(topic) for topic in configs if remote(topic) in new}
    await check_record_limits(target, names, source, existing, {**new, **applied}, findings)


def _copies(
    settings: SourceSettings, topics: dict[str, int], further_topics: Sequence[admin.NewTopic]
) -> list[str]:
    """Returns the names of all topics that the flow writes on the target."""
    remote = make_selection(settings).target_topic
    return [*map(remote, topics), *(topic.name for topic in further_topics)]


async def check_retention(cluster: Cluster, topics: Sequence[admin.NewTopic], findings: Findings) -> None:
    """Reports the flow's own *topics* that expire records and whose settings the flow may not change."""
    uncorrected = await correct_topic_configs(cluster, topics, validate_only=True)
    for sentence in uncorrected.refused:
        findings.problem(sentence)
    if uncorrected.unread:
        findings.note(
            f"The retention of {first_of(uncorrected.unread)} on {cluster.alias} cannot be read without the permission "
            "DescribeConfigs."
        )
