"""Lists the properties that a field of the resource sets; a connector's `config` must not set them.

`name` and `mirrorflow.flow` are not reserved: a flow that continues where another program stopped must be
able to use the names under which that program stored its offsets and identity.
"""

import re

# Set by fields of the resource; if `config` set one as well, one of the two values would silently win.
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
    "mirrorflow.state": "spec.state",
    "mirrorflow.source.loss.policy": "spec.topics.onSourceLoss",
    "mirrorflow.bytes.per.second": "spec.limits.bytesPerSecond",
    "mirrorflow.takeover.from": "spec.takeOverFrom",
}
FIELD_OF_PREFIX = {
    "source.cluster.": "spec.source",
    "target.cluster.": "spec.target",
    "config.providers": "the secret fields of spec.source and spec.target",
}
# Keys of a connector's `config` that its worker reads: where offsets are stored, and how a process stops.
KEYS_OF_WORKER = (
    "offset.storage.",
    "config.storage.",
    "status.storage.",
    "group.id",
    "task.shutdown.graceful.timeout.ms",
)
# The security and the addresses of one client or of all; CEL and Python read the same expression.
SECURITY = "^((source|target)[.])?((consumer|producer|admin)[.])?(override[.])?((security|ssl|sasl)[.]|bootstrap[.]servers)"
SECURITY_FIELDS = "tls, authentication and bootstrapServers of spec.source and spec.target"


def field_of(key: str) -> str | None:
    """Returns the field that sets *key*, or None."""
    if key in FIELD_OF_KEY:
        return FIELD_OF_KEY[key]
    for prefix, field in FIELD_OF_PREFIX.items():
        if key.startswith(prefix):
            return field
    return SECURITY_FIELDS if re.search(SECURITY, key) else None
