"""The keys of MM2's connectors: those with an effect, those that are refused, those without effect, and earlier spellings.

Names and defaults are those of Kafka 4.3 (MirrorConnectorConfig, MirrorSourceConfig, MirrorHeartbeatConfig,
ConnectorConfig).
"""

from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows

SYNONYMS = {
    "emit.heartbeats": "emit.heartbeats.enabled",
    "emit.checkpoints": "emit.checkpoints.enabled",
    "emit.offset-syncs": "emit.offset-syncs.enabled",
    "sync.group.offsets": "sync.group.offsets.enabled",
    "sync.topic.configs": "sync.topic.configs.enabled",
    "sync.topic.acls": "sync.topic.acls.enabled",
    "refresh.topics": "refresh.topics.enabled",
    "refresh.groups": "refresh.groups.enabled",
    "heartbeats.replication": "heartbeats.replication.enabled",
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
    "topics.whitelist": "topics",
    "groups.whitelist": "groups",
    "topics.include": "topics",
    "groups.include": "groups",
}

CONNECTOR_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.CONNECTOR,
        Verdict.HONOURED,
        (
            ("name", "part of the key of every stored position; MM2 uses the class's name"),
            (
                "connector.class",
                "MirrorSourceConnector, MirrorCheckpointConnector or MirrorHeartbeatConnector, with or without package",
            ),
            ("tasks.max", "default 1; each task is a process"),
            ("enabled", "default true, in an mm2.properties false"),
            ("source.cluster.alias", "required"),
            ("target.cluster.alias", "default `target`"),
            ("topics", "default `.*`; names and Java regular expressions, separated by commas"),
            ("topics.exclude", "default `mm2.*\\.internal, .*\\.replica, __.*`; wins over `topics`"),
            ("config.properties.exclude", "default: the lists of all MM2 versions together"),
            ("replication.factor", "default 2, of new topics; -1 is the target's default"),
            ("replication.policy.separator", "default `.`"),
            (
                "replication.policy.internal.topic.separator.enabled",
                "default true; false keeps `.` in the names of internal topics",
            ),
            ("refresh.topics.enabled", "default true"),
            (
                "refresh.topics.interval.seconds",
                "default 600; negative is never; more often in the first 40 minutes of a connector",
            ),
            ("sync.topic.configs.enabled", "default true; only differences are sent"),
            ("sync.topic.configs.interval.seconds", "default 600; negative is never"),
            (
                "mirrorflow.sync.topic.configs.report.only",
                "default false; true: what would be written is a warning, and nothing is written",
            ),
            (
                "mirrorflow.config.properties.exclude.by.topic",
                "pairs `topics:settings` of expressions, separated by commas: settings left alone on single topics, such as `orders.*:retention\\.ms`",
            ),
            (
                "sync.topic.acls.enabled",
                "default true; only differences are sent; also prefixes, and what the flow has created is removed when the source's is gone; an ACL that would deny the flow its own target topics is left out",
            ),
            ("sync.topic.acls.interval.seconds", "default 600; negative is never"),
            (
                "mirrorflow.sync.topic.acls.report.only",
                "default false; true: what would be written is a warning, and nothing is written",
            ),
            (
                "emit.offset-syncs.enabled",
                "default true; false beside a key that begins with `offset-syncs` is refused, as in MM2",
            ),
            ("offset-syncs.topic.location", "`source` (default) or `target`: which cluster has the topic"),
            ("offset-syncs.topic.replication.factor", "default 3; -1 is the cluster's default"),
            (
                "offset.lag.max",
                "default 100: downstream offsets after which the next record is synced at once",
            ),
            ("heartbeats.replication.enabled", "default true"),
            ("emit.heartbeats.enabled", "default true; decides in an mm2.properties which herders exist"),
            ("emit.heartbeats.interval.seconds", "default 1; negative is never"),
            ("heartbeats.topic.replication.factor", "default 3; -1 is the cluster's default"),
            (
                "mirrorflow.heartbeats.emit.to",
                "`target` (default), `source` or both; heartbeats on the source are those that a connector of the way back would write",
            ),
            ("groups", "default `.*`; names and Java regular expressions, separated by commas"),
            ("groups.exclude", "default `console-consumer-.*, connect-.*, __.*`; wins over `groups`"),
            ("refresh.groups.enabled", "default true"),
            ("refresh.groups.interval.seconds", "default 600; negative is never"),
            (
                "emit.checkpoints.enabled",
                "default true; false beside `sync.group.offsets.enabled=true` moves groups on without checkpoints",
            ),
            ("emit.checkpoints.interval.seconds", "default 60"),
            (
                "sync.group.offsets.enabled",
                "default false; offsets of groups without members on the target are moved on, never back",
            ),
            ("sync.group.offsets.interval.seconds", "default 60"),
            ("checkpoints.topic.replication.factor", "default 3; -1 is the target's default"),
            (
                "mirrorflow.flow",
                "default `A->B`: the id with which the flow claims the source alias on the target",
            ),
            (
                "mirrorflow.takeover.from",
                "ids of flows that this flow continues, once they have stopped; `FlowExists` and `mirrorflow check` name the id",
            ),
            (
                "mirrorflow.state",
                "`running` (default) or `paused`: nothing is copied, the lag is still shown. A standalone process, and processes that share the work, follow it in their files while they run; a single distributed worker has REST for it",
            ),
            (
                "mirrorflow.start.from",
                "where partitions begin that were never copied: `earliest`, `latest`, `by_duration:PT1H`, `timestamp:` with an ISO-8601 moment or milliseconds; wins over `auto.offset.reset`",
            ),
            (
                "mirrorflow.source.loss.policy",
                "`fail` (default), `alert` or `restart`, when source records are lost before they were copied",
            ),
            (
                "mirrorflow.refused.records",
                "`stop` (default) or `skip`: what to do with records that the target refuses for their timestamp or their missing key; skipped ones count in `mirrorflow_lost_records_total`, with a warning",
            ),
            (
                "transforms",
                "names of RegexRouter, Filter, InsertHeader and DropHeaders, in their order; docs/transforms.md; every other class is refused",
            ),
            ("predicates", "names of TopicNameMatches; every other class is refused"),
            (
                "mirrorflow.balance.tasks.enabled",
                "default true: where several nodes share the tasks, partitions are given to tasks by bytes per second and lag; false: as many to each",
            ),
            (
                "mirrorflow.balance.tasks.interval.seconds",
                "default 60: how often that is measured; negative is never",
            ),
            ("mirrorflow.bytes.per.second", "limit of the flow, for example `50Mi`; default none"),
        ),
    ),
    *rows(
        Scope.CONNECTOR,
        Verdict.HONOURED,
        (
            (
                "use.defaults.from",
                "`target` (default) or `source`; in an mm2.properties only as `A->B.use.defaults.from`, as in MM2",
            ),
            (
                "exactly.once.support",
                "`required` asks for `isolation.level=read_committed`, as in MM2; in an mm2.properties only as `A->B.exactly.once.support`",
            ),
            ("offset.flush.interval.ms", "how often positions are stored; default 5000, MM2's is 60000"),
            (
                "config.providers",
                "EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; a value that changes is followed without a restart",
            ),
            ("config.providers.*", "`class`, `param.allowed.paths`, `param.allowlist.pattern`"),
            (
                "transforms.*",
                "`type`, `predicate`, `negate`, and `regex`, `replacement`, `header`, `value.literal`, `headers` as of Java's classes",
            ),
            ("predicates.*", "`type` and `pattern` of TopicNameMatches"),
            ("mirrorflow.http.listeners", "counts for the process, if the worker has none"),
        ),
        top_level=False,
    ),
    *rows(
        Scope.CONNECTOR,
        Verdict.MAPPED,
        (
            ("admin.timeout.ms", "every request has its own limit"),
            ("task.index", "given to each task"),
            ("task.assigned.partitions", "given to each task"),
            ("task.assigned.groups", "one task has all groups"),
            ("consumer.poll.timeout.ms", "fetches wait as long as `fetch.max.wait.ms`"),
            ("metric.names.formats", "metrics have Prometheus names"),
            ("config.action.reload", "references are resolved anew whenever a client is built"),
            ("metrics.level", "`partition` (default), `topic` or `flow`; read from the worker"),
        ),
    ),
    *rows(
        Scope.CONNECTOR,
        Verdict.MAPPED,
        (
            (
                "transaction.boundary",
                "`poll`, `interval` or `connector`; what is in transactions is decided for each partition (docs: exactly once)",
            ),
            (
                "transaction.boundary.interval.ms",
                "a transaction is committed as soon as the source has no more records, or after 250 ms; later where commits are slow",
            ),
        ),
        top_level=False,
    ),
)

# They need a Java process: classes, transformations, dead letter queues. With their default values they request nothing,
# and are accepted.
NO_RECORDS = "batches are copied as bytes, no record passes through Java's converters and transformations"

REFUSED_CONNECTOR_KEYS: tuple[Key, ...] = (
    *(
        Key(
            name=name,
            scope=Scope.CONNECTOR,
            verdict=Verdict.REFUSED,
            note=note,
            accepted=accepted,
            python="python:" in note,
        )
        for name, note, accepted in (
            (
                "replication.policy.class",
                "it must be DefaultReplicationPolicy, IdentityReplicationPolicy or python:package.module:Class",
                ("DefaultReplicationPolicy", "IdentityReplicationPolicy"),
            ),
            (
                "topic.filter.class",
                "it must be DefaultTopicFilter or python:package.module:Class",
                ("DefaultTopicFilter",),
            ),
            (
                "group.filter.class",
                "it must be DefaultGroupFilter or python:package.module:Class",
                ("DefaultGroupFilter",),
            ),
            (
                "config.property.filter.class",
                "it must be DefaultConfigPropertyFilter or python:package.module:Class",
                ("DefaultConfigPropertyFilter",),
            ),
            (
                "forwarding.admin.class",
                "it must be ForwardingAdmin; topics are created through Kafka's own protocol",
                ("ForwardingAdmin",),
            ),
            ("key.converter", f"{NO_RECORDS}; it must be ByteArrayConverter", ("ByteArrayConverter",)),
            ("value.converter", f"{NO_RECORDS}; it must be ByteArrayConverter", ("ByteArrayConverter",)),
            (
                "header.converter",
                "it must be ByteArrayConverter, or SimpleHeaderConverter, which writes headers in base64, as in Java",
                ("ByteArrayConverter", "SimpleHeaderConverter"),
            ),
            (
                "errors.tolerance",
                "it must be `none`; a record that cannot be copied stops its partition and says so",
                ("none",),
            ),
        )
    ),
    *rows(
        Scope.CONNECTOR,
        Verdict.REFUSED,
        (
            ("key.converter.plugin.version", NO_RECORDS),
            ("value.converter.plugin.version", NO_RECORDS),
            ("header.converter.plugin.version", NO_RECORDS),
            (
                "errors.deadletterqueue.*",
                "records cannot be diverted; a partition that cannot go on stops and says so",
            ),
            ("topic.creation.*", "topics are created as on the source, with `replication.factor`"),
            ("topic.creation.groups", "topics are created as on the source, with `replication.factor`"),
            ("offsets.storage.topic", "positions of a flow are in one topic, `offset.storage.topic`"),
        ),
        top_level=False,
    ),
)

# Nothing corresponds to them here.
IGNORED_CONNECTOR_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.CONNECTOR,
        Verdict.IGNORED,
        (
            ("tasks.max.enforce", "there are never more tasks than `tasks.max`"),
            ("metric.reporters", "metrics are served by HTTP; reporters are Java classes"),
            ("auto.include.jmx.reporter", "metrics are served by HTTP"),
            ("errors.retry.timeout", "what time may heal is retried without end, and reported"),
            ("errors.retry.delay.max.ms", "what time may heal is retried without end, and reported"),
            ("errors.log.enable", "errors are always logged"),
            ("errors.log.include.messages", "payloads are never logged"),
            ("connector.plugin.version", "there is one version of each connector here"),
            ("add.source.alias.to.metrics", "every metric has the alias, as since MM2 4.0"),
        ),
    ),
)
