"""Properties that a field of the resource sets: written in a connector's `config` as well, one would win in silence.

`name` and `mirrorflow.flow` are not among them: a flow that goes on where another program stopped has to be able to bear the
names under which that one kept its books.
"""

# Set by fields of the resource; written in `config` as well, one of the two would win in silence.
FIELD_OF_KEY = {
    "connector.class": "spec.connectors",
    "tasks.max": "tasks",
    "topics": "spec.topics.include",
    "topics.exclude": "spec.topics.exclude",
    "topics.blacklist": "spec.topics.exclude",
    "groups": "spec.groups.include",
    "groups.exclude": "spec.groups.exclude",
    "groups.blacklist": "spec.groups.exclude",
    "replication.policy.class": "spec.topics.naming.policy",
    "replication.policy.separator": "spec.topics.naming.separator",
    "replication.factor": "spec.topics.replicationFactor",
    "sync.topic.configs.enabled": "spec.topics.configs.sync",
    "config.properties.exclude": "spec.topics.configs.exclude",
    "mirrorflow.config.properties.exclude.by.topic": "spec.topics.configs.exceptions",
    "mirrorflow.sync.topic.configs.report.only": "spec.topics.configs.sync",
    "sync.topic.acls.enabled": "spec.topics.acls.sync",
    "mirrorflow.sync.topic.acls.report.only": "spec.topics.acls.sync",
    "sync.group.offsets.enabled": "spec.groups.syncOffsets",
    "offset-syncs.topic.location": "spec.offsetSyncs.location",
    "emit.heartbeats.enabled": "spec.heartbeats.emitTo",
    "source.consumer.isolation.level": "spec.isolationLevel",
    "mirrorflow.start.from": "spec.topics.startFrom",
    "mirrorflow.source.loss.policy": "spec.topics.onSourceLoss",
    "mirrorflow.bytes.per.second": "spec.limits.bytesPerSecond",
}
FIELD_OF_PREFIX = {
    "source.cluster.": "spec.source",
    "target.cluster.": "spec.target",
    "config.providers": "the secret fields of spec.source and spec.target",
}
CLIENT_PREFIXES = (
    "consumer.",
    "producer.",
    "admin.",
    "source.consumer.",
    "source.producer.",
    "source.admin.",
)
MORE_CLIENT_PREFIXES = (
    "target.consumer.",
    "target.producer.",
    "target.admin.",
    "producer.override.",
    "consumer.override.",
)
# In a connector's `config`, and the worker's to read: where positions are kept, and how a process ends.
KEYS_OF_WORKER = (
    "offset.storage.",
    "config.storage.",
    "status.storage.",
    "group.id",
    "task.shutdown.graceful.timeout.ms",
)
SECURITY_KEYS = ("security.", "ssl.", "sasl.", "bootstrap.servers")


def field_of(key: str) -> str | None:
    """The field that sets *key*; None if none does."""
    if key in FIELD_OF_KEY:
        return FIELD_OF_KEY[key]
    for prefix, field in FIELD_OF_PREFIX.items():
        if key.startswith(prefix):
            return field
    plain = next(
        (key.removeprefix(one) for one in (*MORE_CLIENT_PREFIXES, *CLIENT_PREFIXES) if key.startswith(one)),
        key,
    )
    if plain.startswith(SECURITY_KEYS):
        return "tls, authentication and bootstrapServers of spec.source and spec.target"
    return None
