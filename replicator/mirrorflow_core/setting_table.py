"""Lists every setting with its verdict, default and note; looks keys up, and warns of unknown ones.

To add a setting:

1. Add its row here, a field to `mirrorflow_core.settings`, and read it in `config.connector_properties` (or `config.worker_properties`).
2. If a MirrorFlow resource can set it: add the field to `mirrorflow_operator.api.spec`, set the property in
   `mirrorflow_operator.plan.properties`, and run `make crds`.
3. Regenerate docs/settings.md: `python -m mirrorflow_core.setting_table > docs/settings.md`.

Names are those of Kafka 4.3 (ConnectorConfig, MM2's and Connect's configs, and those of Kafka's clients) and of KIP-304. Each
unknown key causes a warning that names it, because a misspelt key that is silently dropped is the most common cause of "it does not
replicate my topic".
"""

import difflib
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Mapping
from enum import Enum

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_core.java.properties import property_pairs, read_list, trailing_comment
from mirrorflow_core.java.security_keys import SECURITY_KEYS, verdict
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.settings import GROUPS_EXCLUDE, TOPICS_EXCLUDE

INTERNAL_REST_KEY = "dedicated.mode.enable.internal.rest"
SERVER_NAME_KEY = "mirrorflow.internal.rest.server.name"
_GROUP = "in a group of nodes"
_NO_TOPIC = (
    "required in `distributed`; always `mm2-{}.<source>.internal` in an mm2.properties; a standalone process "
    "reads its connectors from files"
)
_CONVERTER = (
    "bytes are copied unchanged with every converter; a connector without a ByteArrayConverter of its own has the "
    "warning `ConverterNotUsed` for any other class"
)
_NO_RECORDS = "batches are copied as bytes, without Java's converters and transformations"
_BATCHES = "batches are copied unchanged"
_WITHOUT_EFFECT = {
    "the copier manages its own connections and timeouts": """
        request.timeout.ms default.api.timeout.ms connections.max.idle.ms reconnect.backoff.ms reconnect.backoff.max.ms
        retry.backoff.ms retry.backoff.max.ms socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
        send.buffer.bytes receive.buffer.bytes metadata.max.age.ms metadata.max.idle.ms metadata.recovery.strategy
        metadata.recovery.rebootstrap.trigger.ms client.dns.lookup bootstrap.controllers
    """,
    "the copier sizes its fetches itself": """
        fetch.min.bytes fetch.max.bytes fetch.max.wait.ms max.partition.fetch.bytes max.poll.records max.poll.interval.ms
    """,
    "no group is joined": """
        session.timeout.ms heartbeat.interval.ms group.instance.id partition.assignment.strategy auto.commit.interval.ms
        exclude.internal.topics allow.auto.create.topics group.protocol group.remote.assignor share.acknowledgement.mode
    """,
    _BATCHES: """
        batch.size linger.ms buffer.memory max.request.size compression.gzip.level compression.lz4.level
        compression.zstd.level check.crcs key.serializer value.serializer key.deserializer value.deserializer
        partitioner.ignore.keys partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
        transaction.two.phase.commit.enable
    """,
    "metrics are served by HTTP": """
        metrics.num.samples metrics.sample.window.ms metrics.recording.level metric.reporters auto.include.jmx.reporter
        enable.metrics.push
    """,
}
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
# Longest first, so that `source.consumer.` is not read as a key that begins with `source.`.
_CLIENT_PREFIXES = (
    *(
        f"{side}.{kind}."
        for side in ("source", "target")
        for kind in ("cluster", "consumer", "producer", "admin")
    ),
    *(f"{kind}.override." for kind in ("consumer", "producer", "admin")),
    "consumer.",
    "producer.",
    "admin.",
    "offset.storage.kafka.",
    "listeners.https.",
)
_EXPRESSIONS = ("topics", "groups", "topics.exclude", "groups.exclude", "config.properties.exclude")
_CLIENT_KINDS = ("consumer.", "producer.", "admin.")
_CONNECTOR_CLIENTS = (
    *_CLIENT_KINDS,
    *(f"{side}.{kind}" for side in ("source", "target") for kind in _CLIENT_KINDS),
    "producer.override.",
)
# Settings that single clients have, and one kind of client that reads them; addresses and security are every client's.
_READERS = {
    "client.id": "consumer",
    "client.rack": "consumer",
    "auto.offset.reset": "consumer",
    "isolation.level": "consumer",
    "transaction.timeout.ms": "producer",
}
# Lists of expressions, by their old names too, transforms, secrets, PEM text, and names that the user chooses.
_FREE_TEXT = re.compile(
    rf"(.*\.)?({'|'.join(map(re.escape, (*_EXPRESSIONS, *(old for old, proper in SYNONYMS.items() if proper in _EXPRESSIONS))))}"
    r"|exclude\.by\.topic|(transforms|predicates)\..*"
    r"|jaas\.config|password|passphrase|secret|user\.info|auth\.token|certificates|certificate\.chain|keystore\.key|scope|client\.id|client\.rack|name)"
)


class Verdict(Enum):
    """How a key is treated."""

    HONOURED = "honoured"
    MAPPED = "mapped"
    IGNORED = "ignored"
    REFUSED = "refused"


class Scope(Enum):
    """Where a key may be written; the values are text for docs/settings.md."""

    CONNECTOR = (
        "In connector.properties; in an mm2.properties at the top level (unless the note says otherwise) or as "
        "`A->B.key`, which wins."
    )
    WORKER = "In worker.properties; in an mm2.properties as `B.key`, B being the target."
    REST = "In worker.properties; in an mm2.properties at the top level."
    DRIVER = "At the top level."
    CLIENT = (
        "In connector.properties prefixed with `source.cluster.`, `target.cluster.` (addresses, TLS and SASL only), `consumer.`, "
        "`admin.`, `source.consumer.`, `source.admin.`, `target.producer.`, `target.admin.`, `producer.override.`; in "
        "worker.properties plain or prefixed with `producer.`; in an mm2.properties as `A.key`, `A.consumer.key` and so on. Elsewhere, they "
        "have no effect: `client.id`, `client.rack`, `auto.offset.reset`, `isolation.level` and `transaction.timeout.ms` then cause a warning."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or a family of keys with `*` in its name."""

    name: str
    scope: Scope
    verdict: Verdict
    note: str
    default: str = ""  # of a refused or mapped key: the values that request nothing else, separated by spaces
    top_level: bool = True  # whether MM2 reads it from the top level of an mm2.properties
    warns: bool = True  # whether an ignored key causes a warning at start
    needs: str | None = None  # a key that must also be true; otherwise this one has no effect

    @property
    def outcome(self) -> str:
        """The verdict for the documentation, in which an accepted default must not look like a refusal."""
        is_accepted = self.verdict is Verdict.REFUSED and self.default
        return "honoured or refused" if is_accepted else self.verdict.value

    def accepts(self, value: str) -> bool:
        """Whether *value* requests nothing unsupported of a refused or mapped key."""
        written = value.strip()
        if written.startswith("python:"):
            return "python:" in self.note
        if written.startswith("org.apache.kafka."):
            written = written.rpartition(".")[2]
        return written in self.default.split() or (self.scope is Scope.CLIENT and not written)


def rows(
    scope: Scope,
    verdict: Verdict,
    text: str,
    *,
    top_level: bool = True,
    warns: bool = True,
    needs: str | None = None,
) -> tuple[Key, ...]:
    """Returns the rows of *text*, a line each: `name [default]: note`."""
    lines = []
    for line in text.strip().splitlines():
        head, _, note = f"{line.strip()} ".partition(": ")
        name, _, default = head.partition(" [")
        lines.append(
            Key(
                name=name,
                scope=scope,
                verdict=verdict,
                note=note.rstrip(),
                default=default.removesuffix("]"),
                top_level=top_level,
                warns=warns,
                needs=needs,
            )
        )
    return tuple(lines)


# fmt: off
KEYS: tuple[Key, ...] = (
    *rows(Scope.CONNECTOR, Verdict.HONOURED, rf"""
        name: part of the key of every stored position; MM2 uses the class's name
        connector.class: MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector or MirrorSchemaConnector, with or without package
        tasks.max [1]: each task is a process
        enabled [true]: default false in an mm2.properties
        source.cluster.alias: required
        target.cluster.alias [target]:
        topics [.*]: names and Java regular expressions, separated by commas
        topics.exclude [{", ".join(TOPICS_EXCLUDE)}]: wins over `topics`
        config.properties.exclude: default: the union of the lists of all MM2 versions
        replication.factor [2]: of new topics; -1: the target's default
        replication.policy.separator [.]:
        replication.policy.internal.topic.separator.enabled [true]: false keeps `.` in the names of internal topics
        refresh.topics.enabled [true]:
        refresh.topics.interval.seconds [600]: negative: never; shorter in the first 40 minutes of a connector
        sync.topic.configs.enabled [true]: only differences are written
        sync.topic.configs.interval.seconds [600]: negative: never
        mirrorflow.sync.topic.configs.report.only [false]: true: differences are reported as warnings and not written
        mirrorflow.config.properties.exclude.by.topic: settings that are not synchronized on some topics: pairs `topics:settings` of Java regular expressions, separated by commas, such as `orders.*:retention\.ms`
        sync.topic.acls.enabled [true]: only differences are written; prefixed ACLs are copied; ACLs that the flow has created are removed when those of the source are gone; ACLs that would deny the flow its own target topics are left out
        sync.topic.acls.interval.seconds [600]: negative: never
        mirrorflow.sync.topic.acls.report.only [false]: true: differences are reported as warnings and not written
        emit.offset-syncs.enabled [true]: false together with a key that begins with `offset-syncs` is refused, as in MM2
        offset-syncs.topic.location [source]: `source` or `target`: the cluster of the topic
        offset-syncs.topic.replication.factor [3]: -1: the cluster's default
        offset.lag.max [100]: the number of target offsets without an offset sync, after which the next one is written at once
        heartbeats.replication.enabled [true]:
        emit.heartbeats.enabled [true]: in an mm2.properties, true also emits heartbeats for disabled flows
        emit.heartbeats.interval.seconds [1]: negative: never
        heartbeats.topic.replication.factor [3]: -1: the cluster's default
        mirrorflow.heartbeats.emit.to [target]: `target`, `source` or both; on the source, the heartbeats are those of a flow in the reverse direction
        groups [.*]: names and Java regular expressions, separated by commas
        groups.exclude [{", ".join(GROUPS_EXCLUDE)}]: wins over `groups`
        refresh.groups.enabled [true]:
        refresh.groups.interval.seconds [600]: negative: never
        emit.checkpoints.enabled [true]: false together with `sync.group.offsets.enabled=true` synchronizes groups without checkpoints
        emit.checkpoints.interval.seconds [60]:
        sync.group.offsets.enabled [false]: offsets of groups without members on the target are advanced, never set back
        sync.group.offsets.interval.seconds [60]: of passes over all groups; groups that move are followed within seconds
        checkpoints.topic.replication.factor [3]: -1: the target's default
        mirrorflow.flow: default `A->B`: the id with which the flow claims the source alias on the target
        mirrorflow.takeover.from: ids of flows that this flow continues, once they have stopped; `FlowExists` and `mirrorflow check` name the id
        mirrorflow.state [running]: `running` or `paused` (nothing is copied, the lag is still reported); standalone processes and groups of nodes apply a change in their files without a restart; a single distributed worker is paused over REST
        mirrorflow.start.from: the start of partitions that were never copied: `earliest`, `latest`, `by_duration:PT1H`, or `timestamp:` with an ISO 8601 timestamp or milliseconds; wins over `auto.offset.reset`
        mirrorflow.source.loss.policy [fail]: `fail`, `alert` or `restart`: what to do when source records are lost before they are copied
        mirrorflow.refused.records [stop]: `stop` or `skip`: what to do with records that the target refuses because of their timestamp or missing key; skipped records are counted in `mirrorflow_lost_records_total` and cause a warning
        transforms: names of transforms, in their order; RegexRouter, Filter, InsertHeader and DropHeaders (docs/transforms.md); every other class is refused
        predicates: names of predicates; TopicNameMatches; every other class is refused
        mirrorflow.balance.tasks.enabled [true]: in a group of nodes, partitions are assigned to tasks by bytes per second and lag; false: the same number to each task
        mirrorflow.balance.tasks.interval.seconds [60]: how often loads are measured; negative: never
        mirrorflow.bytes.per.second: rate limit of the flow, for example `50Mi`; default: none
        mirrorflow.schemas.subjects [.*]: subjects of the source's schema registry that are copied (docs/schemas.md): names and Java regular expressions, separated by commas; subjects that their schemas refer to are copied, too
        mirrorflow.schemas.contexts [.]: contexts that are copied, and the contexts of their copies, as `.:.east`; the default context is a dot
        mirrorflow.schemas.subject.prefix: comes before the names of copied subjects
        mirrorflow.schemas.wait.topics: topics of the source whose records are copied after their schemas (docs/schemas.md): names and Java regular expressions, separated by commas; default: none
        mirrorflow.schemas.wait.max.ms [30000]: after this time, records are copied although the target's registry lacks their schemas
    """),
    *rows(Scope.CONNECTOR, Verdict.HONOURED, r"""
        use.defaults.from [target]: `target` or `source`; in an mm2.properties only as `A->B.use.defaults.from`, as in MM2
        exactly.once.support: `required` needs `isolation.level=read_committed`, as in MM2; in an mm2.properties only as `A->B.exactly.once.support`
        offset.flush.interval.ms [5000]: how often positions are stored; MM2's default is 60000
        config.providers: EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; changed values apply without a restart
        config.providers.*: `class`, `param.allowed.paths`, `param.allowlist.pattern`
        transforms.*.type: the class of a transform
        transforms.*.predicate: only the topics of this predicate
        transforms.*.negate: true: all topics but those of the predicate
        transforms.*.regex: of RegexRouter, as in Java
        transforms.*.replacement: of RegexRouter, as in Java
        transforms.*.header: of InsertHeader, as in Java
        transforms.*.value.literal: of InsertHeader, as in Java
        transforms.*.headers: of DropHeaders, as in Java
        predicates.*.type: the class of a predicate
        predicates.*.pattern: of TopicNameMatches, as in Java
        *.cluster.schema.registry.url: with `source.` and `target.`: the schema registries (docs/schemas.md); several URLs, separated by commas, are tried in turn; in an mm2.properties `A.schema.registry.url`, and likewise below
        *.cluster.schema.registry.basic.auth.user.info: `user:password`
        *.cluster.schema.registry.bearer.auth.token: a bearer token
        *.cluster.schema.registry.ssl.*: as the clients' own `ssl.*`
        mirrorflow.http.listeners: applies to the process, unless the worker sets it
        rest.modify.enable: applies to the process, unless the worker sets it
    """, top_level=False),
    *rows(Scope.CONNECTOR, Verdict.MAPPED, r"""
        admin.timeout.ms: every request has its own timeout
        task.index: set for each task
        task.assigned.partitions: set for each task
        task.assigned.groups: one task has all groups
        consumer.poll.timeout.ms: a fetch waits up to 500 ms for new data
        metric.names.formats: read from the worker
        config.action.reload: references are resolved anew whenever a client is built
        metrics.level: `partition` (default), `topic` or `flow`; read from the worker
    """),
    *rows(Scope.CONNECTOR, Verdict.MAPPED, r"""
        transaction.boundary: `poll`, `interval` or `connector`; the write mode is decided for each partition (docs/exactly-once.md)
        transaction.boundary.interval.ms: a transaction is committed when the source has no more records, and after 250 ms at the latest; after up to a tenth of transaction.timeout.ms if commits are slow
    """, top_level=False),
    *rows(Scope.CONNECTOR, Verdict.REFUSED, rf"""
        replication.policy.class [DefaultReplicationPolicy IdentityReplicationPolicy]: it must be DefaultReplicationPolicy, IdentityReplicationPolicy or python:package.module:Class
        topic.filter.class [DefaultTopicFilter]: it must be DefaultTopicFilter or python:package.module:Class
        group.filter.class [DefaultGroupFilter]: it must be DefaultGroupFilter or python:package.module:Class
        config.property.filter.class [DefaultConfigPropertyFilter]: it must be DefaultConfigPropertyFilter or python:package.module:Class
        forwarding.admin.class [ForwardingAdmin]: it must be ForwardingAdmin; topics are created through Kafka's own protocol
        key.converter [ByteArrayConverter]: {_NO_RECORDS}; it must be ByteArrayConverter
        value.converter [ByteArrayConverter]: {_NO_RECORDS}; it must be ByteArrayConverter
        header.converter [ByteArrayConverter SimpleHeaderConverter]: it must be ByteArrayConverter, or SimpleHeaderConverter, which writes headers in base64, as in Java
        errors.tolerance [none]: it must be `none`; a record that cannot be copied stops its partition, which reports it
    """),
    *rows(Scope.CONNECTOR, Verdict.REFUSED, rf"""
        key.converter.plugin.version: {_NO_RECORDS}
        value.converter.plugin.version: {_NO_RECORDS}
        header.converter.plugin.version: {_NO_RECORDS}
        errors.deadletterqueue.*: records cannot be diverted; a partition that cannot continue stops and reports it
        topic.creation.*: topics are created with the settings of the source and `replication.factor`
        topic.creation.groups: topics are created with the settings of the source and `replication.factor`
        offsets.storage.topic: a flow stores its positions in one topic, `offset.storage.topic`
    """, top_level=False),
    *rows(Scope.CONNECTOR, Verdict.IGNORED, r"""
        tasks.max.enforce: there are never more tasks than `tasks.max`
        metric.reporters: metrics are served by HTTP; reporters are Java classes
        auto.include.jmx.reporter: metrics are served by HTTP
        errors.retry.timeout: transient errors are retried without end, and reported
        errors.retry.delay.max.ms: transient errors are retried without end, and reported
        errors.log.enable: errors are always logged
        errors.log.include.messages: payloads are never logged
        connector.plugin.version: each connector has one version
        transforms.*.plugin.version: each transform has one version
        predicates.*.plugin.version: each predicate has one version
        add.source.alias.to.metrics: every metric has the source alias, as in MM2 4.0 and later
    """),
    *rows(Scope.WORKER, Verdict.HONOURED, rf"""
        bootstrap.servers: the target cluster
        client.id: part of the client ids of the worker
        group.id: the group of nodes; default `<source>-mm2` in an mm2.properties; part of the client ids of the worker
        offset.storage.store [kafka]: `kafka` or `file` (KIP-304); always `kafka` in `distributed`
        offset.storage.topic: default `mm2-offsets.<source>.internal`; a synonym is `offset.storage.kafka.topic`
        offset.storage.partitions [1]: each of Connect's 25 takes a marker at a commit, and together they delay the first record by 0.2 s
        offset.storage.replication.factor [-1]: -1: the target's default; Connect's default is 3
        offset.storage.file.filename: the file of positions with `offset.storage.store=file`
        offset.storage.cleanup.policy: always `compact`, as in Connect
        offset.storage.*: settings of the offsets topic, and the connection of its client
        config.storage.topic: connectors and their desired states; {_NO_TOPIC.format('configs')}
        config.storage.*: replication factor (default -1; Connect's default is 3) and settings of that topic
        status.storage.topic: observed states of connectors and tasks; {_NO_TOPIC.format('status')}
        status.storage.*: partitions (default 5), replication factor and settings of that topic
        offset.flush.interval.ms [5000]: Connect's default is 60000
        task.shutdown.graceful.timeout.ms [5000]:
        config.providers: EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; changed values apply without a restart
        config.providers.*: `class`, `param.allowed.paths`, `param.allowlist.pattern`
        metrics.level [partition]: `partition`, `topic` or `flow`: the level of detail of /metrics
        metric.names.formats [legacy]: `legacy`, `new` (KIP-1280) or both, for MM2's own metrics in /metrics
        schema.registry.*: only in an mm2.properties: the schema registry of a cluster, as for connectors
    """),
    *rows(Scope.WORKER, Verdict.HONOURED, rf"""
        session.timeout.ms [10000]: {_GROUP}: a node without heartbeats for this time is removed
        heartbeat.interval.ms [500]: {_GROUP}; Connect's default is 3000
        rebalance.timeout.ms [30000]: {_GROUP}; at most 30000; Connect's default is 60000
        connect.protocol [sessioned]: {_GROUP}: `sessioned` or `compatible`; `eager` is refused
        inter.worker.key.generation.algorithm [HmacSHA256]: {_GROUP}
        inter.worker.key.size: {_GROUP}; default: that of the algorithm, 32 bytes for HmacSHA256
        inter.worker.key.ttl.ms [3600000]: {_GROUP}: time after which the leader creates a new key; 0: never
        inter.worker.signature.algorithm [HmacSHA256]: {_GROUP}
        inter.worker.verification.algorithms [HmacSHA256]: {_GROUP}
    """, needs=INTERNAL_REST_KEY),
    *rows(Scope.WORKER, Verdict.MAPPED, rf"""
        exactly.once.source.support: `disabled`, `preparing` or `enabled`: the guarantee is the same with each (docs/exactly-once.md)
        offset.flush.timeout.ms: every request has its own timeout
        connector.client.config.override.policy: always All, as in MM2's dedicated mode
        replication.policy.*: taken from the connectors
        key.converter [ByteArrayConverter]: {_CONVERTER}
        value.converter [ByteArrayConverter]: {_CONVERTER}
        header.converter [ByteArrayConverter]: {_CONVERTER}
    """),
    *rows(Scope.WORKER, Verdict.IGNORED, r"""
        *.converter.*: there are no converters
        internal.key.converter: positions are always JSON without schemas, as in Connect
        internal.value.converter: positions are always JSON without schemas, as in Connect
        internal.topics.automatic.creation.enable: missing internal topics are always created
        plugin.path: there are no plugins
        plugin.discovery: there are no plugins
        topic.creation.enable: topics are always created, with the settings of the source
        topic.tracking.*: active topics are always tracked
        worker.sync.timeout.ms: a node that is behind the config topic rejoins after a second
        worker.unsync.backoff.ms: a node that is behind the config topic rejoins after a second
        scheduled.rebalance.max.delay.ms: always 0, Connect's default is 300000: the work of a lost node is reassigned at once, because tasks start within seconds
        group.instance.id: there is no static membership: a restarted node is a new member, and its work was reassigned
        metric.reporters: metrics are served by HTTP; reporters are Java classes
        auto.include.jmx.reporter: metrics are served by HTTP
        metrics.context.*: metrics are served by HTTP
        metrics.sample.window.ms: metrics are counters; Prometheus computes rates
        metrics.num.samples: metrics are counters; Prometheus computes rates
        metrics.recording.level: use `metrics.level`
    """),
    *rows(Scope.REST, Verdict.HONOURED, rf"""
        mirrorflow.http.listeners: REST, health, progress and metrics; default `listeners`, in an mm2.properties none; port 0: any free port
        listeners [http://:8083]: the address at which other nodes call; in an mm2.properties only for that
        listeners.https.*: TLS of the listeners; if one is set, plain `ssl.*` settings do not apply to them
        ssl.client.auth: none, requested or required
        mirrorflow.http.client.auth: the same for listeners that other nodes do not call: `mirrorflow.http.listeners` beside `listeners` and in an mm2.properties, else all but the first; default `ssl.client.auth`
        {INTERNAL_REST_KEY} [false]: false: a `distributed` worker is the only node; true: processes with the same `group.id` share the work; processes with an mm2.properties always share it, and true lets them call each other, which Java nodes need
        rest.advertised.host.name: the host at which other nodes call this one, also its name in statuses; default: that of the listener
        rest.advertised.port: the port at which other nodes call this one, also in its name in statuses; default: that of the listener
        rest.modify.enable: default true in `distributed`, as in Connect; false: POST, PUT, PATCH and DELETE return 403 (KIP-304)
    """),
    *rows(Scope.REST, Verdict.HONOURED, rf"""
        {SERVER_NAME_KEY}: the name in the certificates of other nodes, if all share one certificate; default: the host that is called
    """, needs=INTERNAL_REST_KEY),
    *rows(Scope.REST, Verdict.IGNORED, r"""
        rest.advertised.listener: other nodes call the first listener
        access.control.allow.*: cross-origin requests are not allowed
        response.http.headers.config: responses have no further headers
        rest.host.name: removed from Kafka; use `listeners`
        rest.port: removed from Kafka; use `listeners`
    """),
    *rows(Scope.REST, Verdict.REFUSED, r"""
        rest.extension.classes: extensions are Java classes; in an mm2.properties ignored, as in MM2
        admin.listeners: there are no admin resources; in an mm2.properties ignored, as in MM2
        admin.listeners.*: there are no admin resources; in an mm2.properties ignored, as in MM2
    """),
    *rows(Scope.DRIVER, Verdict.HONOURED, r"""
        clusters: the aliases; required; `A.alias` is another alias of cluster `A` for topics and stored offsets, as in MM2
    """),
    *rows(Scope.CLIENT, Verdict.HONOURED, """
        bootstrap.servers: host:port, separated by commas
        client.id: a prefix of MM2's own client id, as in MM2; with `producer.` in the worker and `producer.override.` the whole client id, as in Connect
        client.rack: reads from the nearest replica (KIP-392)
        auto.offset.reset [earliest]: of the source consumer: `earliest`, `latest`, `by_duration:PT1H`; only for partitions never copied
        isolation.level [read_uncommitted]: of the source consumer: `read_uncommitted` or `read_committed`
        transaction.timeout.ms [60000]: of the target producer, at least 5000; lower where the brokers' transaction.max.timeout.ms is: after this time the coordinator aborts a transaction of a task, whose records are then copied again
    """),
    *(
        Key(name=name, scope=Scope.CLIENT, verdict=Verdict(treatment), note=why)
        for name in SECURITY_KEYS
        for treatment, why in [verdict(name)]
    ),
    *rows(Scope.CLIENT, Verdict.MAPPED, f"""
        acks: always all
        enable.idempotence: always; each task writes with producer ids of its own
        max.in.flight.requests.per.connection: one batch of a partition until its leader has the producer's state, then more
        retries: transient errors are retried without end, and reported
        delivery.timeout.ms: transient errors are retried without end, and reported
        max.block.ms: a slow partition delays no other
        enable.auto.commit: always false, as in MM2
        group.id: partitions are assigned, no group is joined, as in MM2
        compression.type: {_BATCHES}; the target topic's own setting applies
        transactional.id: ids that begin with `mirrorflow:<source alias>:`
        partitioner.class: a record keeps its partition, as in MM2
    """),
    *rows(
        Scope.CLIENT,
        Verdict.IGNORED,
        "\n".join(f"{name}: {why}" for why, names in _WITHOUT_EFFECT.items() for name in names.split()),
        warns=False,
    ),
    *rows(Scope.CLIENT, Verdict.REFUSED, """
        interceptor.classes: interceptors are Java classes
    """),
)
# fmt: on


WORKER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.REST, Scope.CLIENT)
CONNECTOR_SCOPES: tuple[Scope, ...] = (Scope.CONNECTOR, Scope.CLIENT)
CLUSTER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.CLIENT)
DRIVER_SCOPES: tuple[Scope, ...] = (Scope.DRIVER, Scope.CONNECTOR, Scope.WORKER, Scope.REST, Scope.CLIENT)

DEFAULTS = {key.name: key.default for key in KEYS if key.default and key.verdict is Verdict.HONOURED}
_EXACT = {(key.scope, key.name): key for key in KEYS if "*" not in key.name}
_PATTERNS = tuple(key for key in KEYS if "*" in key.name)
_TITLES = {
    Scope.CONNECTOR: "Connectors",
    Scope.WORKER: "The worker",
    Scope.REST: "HTTP",
    Scope.DRIVER: "Only in an mm2.properties",
    Scope.CLIENT: "Clients",
}


def find(name: str, scopes: tuple[Scope, ...]) -> Key | None:
    """Returns the row of *name* in the first of *scopes* that has it, also after removing client prefixes."""
    for scope in scopes:
        if (scope, name) in _EXACT:
            return _EXACT[scope, name]
    for scope in scopes:
        for key in _PATTERNS:
            if key.scope is scope and fnmatch.fnmatchcase(name, key.name):
                return key
    if Scope.CLIENT in scopes:
        for prefix in _CLIENT_PREFIXES:
            if name.startswith(prefix):
                return find(name.removeprefix(prefix), (Scope.CLIENT,))
    return None


def is_connector_key(name: str) -> bool:
    """Whether MM2 passes *name* from the top level of an mm2.properties to its connectors."""
    key = find(name, (Scope.CONNECTOR,))
    return (
        (key is not None and key.top_level)
        or name == "security.protocol"
        or name.startswith(("ssl.", "sasl."))
    )


def canonical(
    properties: Mapping[str, str], warnings: list[str], *, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Returns *properties* with misspellings and old names replaced; warns of each.

    The misspellings are those of MM2's README, the old names those from before KIP-629.
    """
    out = dict(properties)
    for name, value in properties.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        proper = SYNONYMS.get(name.removeprefix(prefix))
        if proper is None:
            continue
        del out[name]
        if prefix + proper in properties:
            warnings.append(f"{name}: it has no effect, because {prefix + proper} is given too.")
        else:
            out[prefix + proper] = value
            warnings.append(f"{name}: read as {prefix + proper}, which is its name.")
    return out


def check(
    properties: Mapping[str, str], scopes: tuple[Scope, ...], warnings: list[str], *, prefix: str = ""
) -> None:
    """Warns of unknown and ineffective keys; *prefix* is the prefix of the keys in the user's file.

    Raises RefusedSettingError for a key that only a Java process can follow.
    """
    ineffective = []
    for name, value in properties.items():
        key = find(name, scopes)
        if key is None and scopes == CLUSTER_SCOPES and find(name, (Scope.CONNECTOR,)):
            warnings.append(
                f"{prefix}{name}: it has no effect for a cluster; write it for a flow, as A->B.{name}."
            )
        elif key is None:
            warnings.append(f"{prefix}{name}: unknown, it has no effect{suggestion(name, scopes)}")
        elif key.verdict is Verdict.REFUSED and not key.accepts(value):
            if Scope.DRIVER in scopes and key.scope is Scope.REST:
                warnings.append(f"{prefix}{name}: it has no effect in mm2 mode, as in Java.")
            elif Scope.DRIVER in scopes and not key.top_level:
                warnings.append(f"{prefix}{name}: it has no effect at the top level, as in MM2.")
            else:
                raise RefusedSettingError(key=prefix + name, why=key.note)
        elif remedy := _place_of_client_key(name, scopes):
            warnings.append(f"{prefix}{name}: it has no effect there, as in Java; write {prefix}{remedy}.")
        elif (
            (key.verdict is Verdict.IGNORED and key.warns)
            or _lacks_required_key(key, properties, scopes)
            or _configures_unlisted_transform(name, properties)
        ):
            ineffective.append(prefix + name)
    if ineffective:
        warnings.append(f"Without effect here (docs/settings.md says why): {', '.join(sorted(ineffective))}.")


def _place_of_client_key(name: str, scopes: tuple[Scope, ...]) -> str:
    """Returns where to write the client's setting *name* of a worker, a connector or a cluster; "" where its place is right.

    A client's setting with another prefix, or none, reaches no client, which may copy other records than configured.
    """
    prefix, own = "", name
    while first := next((known for known in _CLIENT_PREFIXES if own.startswith(known)), ""):
        prefix, own = prefix + first, own.removeprefix(first)
    if own not in _READERS or Scope.DRIVER in scopes:
        return ""
    kind = _READERS[own]
    if scopes == CONNECTOR_SCOPES:
        places = _CONNECTOR_CLIENTS
        right = f"source.{kind}.{own}" if kind == "consumer" else f"producer.override.{own}"
    elif scopes == CLUSTER_SCOPES:
        places, right = _CLIENT_KINDS, f"{kind}.{own}"
    else:
        places = ("producer.",)
        right = f"producer.{own}" if kind == "producer" else f"source.{kind}.{own} into the connector"
    is_workers = own == "client.id" and prefix == "" and scopes != CONNECTOR_SCOPES
    return "" if prefix in places or is_workers else right


def document() -> str:
    """Returns docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "For people who write a properties file or a connector's `config`. This page lists every setting of MirrorMaker 2,",
        "Kafka Connect and Kafka's clients that MirrorFlow recognizes, and its own. It is generated by",
        "`python -m mirrorflow_core.setting_table`; a test compares page and code.",
        "",
        "- **honoured**: it has the same effect as in Java.",
        "- **mapped**: MirrorFlow serves its purpose in another way, described in the note.",
        "- **ignored**: it has no effect; the note has the reason.",
        "- **refused**: the process does not start, because it would copy other data than configured.",
        "",
        "Any other key has no effect in a properties file, and causes a warning that names it when the process starts. A MirrorFlow with one is",
        "not accepted, as with a field that it does not have.",
        "",
        "These spellings are accepted too, with a warning: "
        + ", ".join(f"`{misspelling}` for `{proper}`" for misspelling, proper in SYNONYMS.items())
        + ".",
    ]
    for scope, title in _TITLES.items():
        lines += [
            "",
            f"## {title}",
            "",
            scope.value,
            "",
            "| key | verdict | default | note |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{key.name}` | {key.outcome} | {f'`{default}`' if default else ''} | {key.note} |"
            for key in KEYS
            if key.scope is scope
            for default in [key.default if key.verdict is Verdict.HONOURED else ""]
        ]
    return "\n".join(lines) + "\n"


def _lacks_required_key(key: Key, properties: Mapping[str, str], scopes: tuple[Scope, ...]) -> bool:
    """Whether *key* has no effect without another one; a cluster of an mm2.properties always has groups."""
    return (
        key.needs is not None
        and scopes != CLUSTER_SCOPES
        and properties.get(key.needs, "").strip().lower() != "true"
    )


def _configures_unlisted_transform(name: str, properties: Mapping[str, str]) -> bool:
    """Whether *name* configures a transformation or predicate that is not listed and so has no effect.

    Java ignores it too.
    """
    family, _, rest = name.partition(".")
    if family not in {"transforms", "predicates"} or not rest:
        return False
    return rest.partition(".")[0] not in read_list(properties.get(family, ""))


def suggestion(name: str, scopes: tuple[Scope, ...]) -> str:
    """Returns the end of a sentence about the unknown key *name*: a question for the likely one, or a full stop."""
    prefix = next((prefix for prefix in _CLIENT_PREFIXES if name.startswith(prefix)), "")
    scopes = (Scope.CLIENT,) if prefix else scopes
    names = [key.name for key in KEYS if key.scope in scopes and "*" not in key.name]
    close = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0.85)
    return f"; did you mean {prefix}{close[0]}?" if close else "."


def read_properties(text: str, warnings: list[str]) -> dict[str, str]:
    """Returns the pairs of *text*, `without_comments`; warns of duplicate keys. Raises InvalidSettingError."""
    pairs = list(property_pairs(text))
    counts = Counter(key for key, _ in pairs)
    warnings += [
        f"{key} is set twice; the last line applies, as in Java."
        for key, count in counts.items()
        if count > 1
    ]
    return without_comments(dict(pairs), warnings)


def without_comments(properties: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Returns *properties* without comments after values, where they can only be comments; warns of each."""
    return {key: _value(key, value, warnings) for key, value in properties.items()}


def _value(key: str, value: str, warnings: list[str]) -> str:
    shorter = trailing_comment(value)
    if shorter is None:
        return value
    if _FREE_TEXT.fullmatch(key):
        warnings.append(
            f"{key}: what looks like a comment behind the value is part of it, as in Java; "
            "write comments on lines of their own."
        )
        return value
    warnings.append(
        f"{key}: the comment behind the value was left out; Java would take it as part of the value. "
        "Write comments on lines of their own."
    )
    return shorter


if __name__ == "__main__":
    sys.stdout.write(document())
