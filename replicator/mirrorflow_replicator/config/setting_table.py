"""Lists every setting with its verdict, default and note; looks keys up, and warns of unknown ones.

To add a setting: add its row here, a field to `mirrorflow_core.settings`, and read it in `config.connector`
(or `config.worker`).

Names are those of Kafka 4.3 (ConnectorConfig, MM2's and Connect's configs, and those of Kafka's clients) and of KIP-304. Each
unknown key causes a warning that names it, because a misspelt key that is silently dropped is the most common cause of "it does not
replicate my topic". `python -m mirrorflow_replicator.config.setting_table` prints docs/settings.md.
"""

import difflib
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_core.java.properties import property_pairs, read_list, trailing_comment
from mirrorflow_core.java.security_keys import SECURITY_KEYS, verdict
from mirrorflow_core.settings import GROUPS_EXCLUDE, TOPICS_EXCLUDE


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
        "In connector.properties behind `source.cluster.`, `target.cluster.` (addresses, TLS and SASL only), `consumer.`, "
        "`admin.`, `source.consumer.`, `source.admin.`, `target.producer.`, `target.admin.`, `producer.override.`; in "
        "worker.properties plain or behind `producer.`; in an mm2.properties as `A.key`, `A.consumer.key` and so on."
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
    needs: str = ""  # a key that must also be true; otherwise this one has no effect

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
    scope: Scope, verdict: Verdict, text: str, *, top_level: bool = True, warns: bool = True, needs: str = ""
) -> tuple[Key, ...]:
    """Returns the rows of *text*, a line each: `name [default]: note`."""
    found = []
    for line in text.strip().splitlines():
        head, _, note = f"{line.strip()} ".partition(": ")
        name, _, default = head.partition(" [")
        found.append(
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
    return tuple(found)


INTERNAL_REST_KEY = "dedicated.mode.enable.internal.rest"
SERVER_NAME_KEY = "mirrorflow.internal.rest.server.name"
_GROUP = "in a group of nodes"
_NO_TOPIC = (
    "in `distributed`, where it is required, and in an mm2.properties, where it is "
    "`mm2-{}.<source>.internal`; a standalone process has its connectors from files"
)
_CONVERTER = (
    "bytes are copied unchanged whatever it is; a connector that does not name ByteArrayConverter itself "
    "warns of any other class with `ConverterNotUsed`"
)
_NO_RECORDS = "batches are copied as bytes, no record passes through Java's converters and transformations"
_BATCHES = "batches are copied as they are"
_WITHOUT_EFFECT = {
    "the engine has its own connections, with limits of its own": """
        request.timeout.ms default.api.timeout.ms connections.max.idle.ms reconnect.backoff.ms reconnect.backoff.max.ms
        retry.backoff.ms retry.backoff.max.ms socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
        send.buffer.bytes receive.buffer.bytes metadata.max.age.ms metadata.max.idle.ms metadata.recovery.strategy
        metadata.recovery.rebootstrap.trigger.ms client.dns.lookup bootstrap.controllers
    """,
    "the engine sizes its fetches itself": """
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

# fmt: off
KEYS: tuple[Key, ...] = (
    *rows(Scope.CONNECTOR, Verdict.HONOURED, rf"""
        name: part of the key of every stored position; MM2 uses the class's name
        connector.class: MirrorSourceConnector, MirrorCheckpointConnector or MirrorHeartbeatConnector, with or without package
        tasks.max [1]: each task is a process
        enabled [true]: in an mm2.properties false
        source.cluster.alias: required
        target.cluster.alias [target]:
        topics [.*]: names and Java regular expressions, separated by commas
        topics.exclude [{", ".join(TOPICS_EXCLUDE)}]: wins over `topics`
        config.properties.exclude: default: the lists of all MM2 versions together
        replication.factor [2]: of new topics; -1 is the target's default
        replication.policy.separator [.]:
        replication.policy.internal.topic.separator.enabled [true]: false keeps `.` in the names of internal topics
        refresh.topics.enabled [true]:
        refresh.topics.interval.seconds [600]: negative is never; more often in the first 40 minutes of a connector
        sync.topic.configs.enabled [true]: only differences are sent
        sync.topic.configs.interval.seconds [600]: negative is never
        mirrorflow.sync.topic.configs.report.only [false]: with true, what would be written is a warning, and nothing is written
        mirrorflow.config.properties.exclude.by.topic: pairs `topics:settings` of expressions, separated by commas: settings left alone on single topics, such as `orders.*:retention\.ms`
        sync.topic.acls.enabled [true]: only differences are sent; also prefixes, and what the flow has created is removed when the source's is gone; an ACL that would deny the flow its own target topics is left out
        sync.topic.acls.interval.seconds [600]: negative is never
        mirrorflow.sync.topic.acls.report.only [false]: with true, what would be written is a warning, and nothing is written
        emit.offset-syncs.enabled [true]: false beside a key that begins with `offset-syncs` is refused, as in MM2
        offset-syncs.topic.location [source]: `source` or `target`: which cluster has the topic
        offset-syncs.topic.replication.factor [3]: -1 is the cluster's default
        offset.lag.max [100]: downstream offsets after which the next record is synced at once
        heartbeats.replication.enabled [true]:
        emit.heartbeats.enabled [true]: decides in an mm2.properties which herders exist
        emit.heartbeats.interval.seconds [1]: negative is never
        heartbeats.topic.replication.factor [3]: -1 is the cluster's default
        mirrorflow.heartbeats.emit.to [target]: `target`, `source` or both; heartbeats on the source are those that a connector of the way back would write
        groups [.*]: names and Java regular expressions, separated by commas
        groups.exclude [{", ".join(GROUPS_EXCLUDE)}]: wins over `groups`
        refresh.groups.enabled [true]:
        refresh.groups.interval.seconds [600]: negative is never
        emit.checkpoints.enabled [true]: false beside `sync.group.offsets.enabled=true` moves groups on without checkpoints
        emit.checkpoints.interval.seconds [60]:
        sync.group.offsets.enabled [false]: offsets of groups without members on the target are moved on, never back
        sync.group.offsets.interval.seconds [60]:
        checkpoints.topic.replication.factor [3]: -1 is the target's default
        mirrorflow.flow: default `A->B`: the id with which the flow claims the source alias on the target
        mirrorflow.takeover.from: ids of flows that this flow continues, once they have stopped; `FlowExists` and `mirrorflow check` name the id
        mirrorflow.state [running]: `running` or `paused`: nothing is copied, the lag is still shown. A standalone process, and processes that share the work, follow it in their files while they run; a single distributed worker has REST for it
        mirrorflow.start.from: where partitions begin that were never copied: `earliest`, `latest`, `by_duration:PT1H`, `timestamp:` with an ISO-8601 moment or milliseconds; wins over `auto.offset.reset`
        mirrorflow.source.loss.policy [fail]: `fail`, `alert` or `restart`, when source records are lost before they were copied
        mirrorflow.refused.records [stop]: `stop` or `skip`: what to do with records that the target refuses for their timestamp or their missing key; skipped ones count in `mirrorflow_lost_records_total`, with a warning
        transforms: names of RegexRouter, Filter, InsertHeader and DropHeaders, in their order; docs/transforms.md; every other class is refused
        predicates: names of TopicNameMatches; every other class is refused
        mirrorflow.balance.tasks.enabled [true]: where several nodes share the tasks, partitions are given to tasks by bytes per second and lag; with false, as many to each
        mirrorflow.balance.tasks.interval.seconds [60]: how often that is measured; negative is never
        mirrorflow.bytes.per.second: limit of the flow, for example `50Mi`; default none
    """),
    *rows(Scope.CONNECTOR, Verdict.HONOURED, r"""
        use.defaults.from [target]: `target` or `source`; in an mm2.properties only as `A->B.use.defaults.from`, as in MM2
        exactly.once.support: `required` asks for `isolation.level=read_committed`, as in MM2; in an mm2.properties only as `A->B.exactly.once.support`
        offset.flush.interval.ms [5000]: how often positions are stored; MM2's default is 60000
        config.providers: EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; a value that changes is followed without a restart
        config.providers.*: `class`, `param.allowed.paths`, `param.allowlist.pattern`
        transforms.*: `type`, `predicate`, `negate`, and `regex`, `replacement`, `header`, `value.literal`, `headers` as of Java's classes
        predicates.*: `type` and `pattern` of TopicNameMatches
        mirrorflow.http.listeners: counts for the process, if the worker has none
        rest.modify.enable: counts for the process, if the worker has none
    """, top_level=False),
    *rows(Scope.CONNECTOR, Verdict.MAPPED, r"""
        admin.timeout.ms: every request has its own limit
        task.index: given to each task
        task.assigned.partitions: given to each task
        task.assigned.groups: one task has all groups
        consumer.poll.timeout.ms: fetches wait as long as `fetch.max.wait.ms`
        metric.names.formats: metrics have Prometheus names
        config.action.reload: references are resolved anew whenever a client is built
        metrics.level: `partition` (default), `topic` or `flow`; read from the worker
    """),
    *rows(Scope.CONNECTOR, Verdict.MAPPED, r"""
        transaction.boundary: `poll`, `interval` or `connector`; what is in transactions is decided for each partition (docs: exactly once)
        transaction.boundary.interval.ms: a transaction is committed as soon as the source has no more records, or after 250 ms; later where commits are slow
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
        errors.tolerance [none]: it must be `none`; a record that cannot be copied stops its partition and says so
    """),
    *rows(Scope.CONNECTOR, Verdict.REFUSED, rf"""
        key.converter.plugin.version: {_NO_RECORDS}
        value.converter.plugin.version: {_NO_RECORDS}
        header.converter.plugin.version: {_NO_RECORDS}
        errors.deadletterqueue.*: records cannot be diverted; a partition that cannot go on stops and says so
        topic.creation.*: topics are created as on the source, with `replication.factor`
        topic.creation.groups: topics are created as on the source, with `replication.factor`
        offsets.storage.topic: positions of a flow are in one topic, `offset.storage.topic`
    """, top_level=False),
    *rows(Scope.CONNECTOR, Verdict.IGNORED, r"""
        tasks.max.enforce: there are never more tasks than `tasks.max`
        metric.reporters: metrics are served by HTTP; reporters are Java classes
        auto.include.jmx.reporter: metrics are served by HTTP
        errors.retry.timeout: what time may heal is retried without end, and reported
        errors.retry.delay.max.ms: what time may heal is retried without end, and reported
        errors.log.enable: errors are always logged
        errors.log.include.messages: payloads are never logged
        connector.plugin.version: there is one version of each connector here
        add.source.alias.to.metrics: every metric has the alias, as since MM2 4.0
    """),
    *rows(Scope.WORKER, Verdict.HONOURED, rf"""
        bootstrap.servers: the target cluster
        client.id: part of the names of the worker's own clients
        group.id: the group of nodes, default `<source>-mm2` in an mm2.properties; part of the names of the worker's own clients
        offset.storage.store [kafka]: `kafka` or `file` (KIP-304); in `distributed` always `kafka`
        offset.storage.topic: default `mm2-offsets.<source>.internal`; `offset.storage.kafka.topic` is the same
        offset.storage.partitions [25]:
        offset.storage.replication.factor [-1]: the target's default; Connect's default is 3
        offset.storage.file.filename: where positions are kept with `offset.storage.store=file`
        offset.storage.cleanup.policy: always `compact`, as in Connect
        offset.storage.*: settings of the offsets topic, and the connection of its client
        config.storage.topic: connectors and what is wanted of them: {_NO_TOPIC.format('configs')}
        config.storage.*: replication factor (default -1, Connect's is 3) and settings of that topic
        status.storage.topic: how connectors and tasks fare: {_NO_TOPIC.format('status')}
        status.storage.*: partitions (default 5), replication factor and settings of that topic
        offset.flush.interval.ms [5000]: Connect's default is 60000
        task.shutdown.graceful.timeout.ms [5000]:
        config.providers: EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; a value that changes is followed without a restart
        config.providers.*: `class`, `param.allowed.paths`, `param.allowlist.pattern`
        metrics.level [partition]: `partition`, `topic` or `flow`: the level of detail of /metrics
    """),
    *rows(Scope.WORKER, Verdict.HONOURED, rf"""
        session.timeout.ms [10000]: {_GROUP}: a node is lost that sends nothing for so long
        heartbeat.interval.ms [500]: {_GROUP}; Connect's default is 3000
        rebalance.timeout.ms [30000]: {_GROUP}; at most that; Connect's default is 60000
        connect.protocol [sessioned]: {_GROUP}: `sessioned` or `compatible`; `eager` is refused there
        inter.worker.key.generation.algorithm [HmacSHA256]: {_GROUP}
        inter.worker.key.size: {_GROUP}; default the algorithm's own, 32 bytes for HmacSHA256
        inter.worker.key.ttl.ms [3600000]: {_GROUP}: after which the leader makes another key; 0 never
        inter.worker.signature.algorithm [HmacSHA256]: {_GROUP}
        inter.worker.verification.algorithms [HmacSHA256]: {_GROUP}
    """, needs=INTERNAL_REST_KEY),
    *rows(Scope.WORKER, Verdict.MAPPED, rf"""
        exactly.once.source.support: `disabled`, `preparing` or `enabled`: the guarantee is the same with any of them (docs: exactly once)
        offset.flush.timeout.ms: every request has its own limit
        connector.client.config.override.policy: always All, as in MM2's dedicated mode
        replication.policy.*: read from the connectors
        key.converter [ByteArrayConverter]: {_CONVERTER}
        value.converter [ByteArrayConverter]: {_CONVERTER}
        header.converter [ByteArrayConverter]: {_CONVERTER}
    """),
    *rows(Scope.WORKER, Verdict.IGNORED, r"""
        *.converter.*: there are no converters
        internal.key.converter: positions are always JSON without schemas, as in Connect
        internal.value.converter: positions are always JSON without schemas, as in Connect
        internal.topics.automatic.creation.enable: internal topics that are missing are created
        plugin.path: there are no plugins
        plugin.discovery: there are no plugins
        topic.creation.enable: topics are created as on the source
        topic.tracking.*: active topics are always known
        worker.sync.timeout.ms: a node that is behind rejoins after a second
        worker.unsync.backoff.ms: a node that is behind rejoins after a second
        scheduled.rebalance.max.delay.ms: always 0, Connect's is 300000: what a lost node had is given to others at once, for it begins within seconds
        group.instance.id: a node that comes again is a new one; others have its work by then
        metric.reporters: metrics are served by HTTP; reporters are Java classes
        auto.include.jmx.reporter: metrics are served by HTTP
        metrics.context.*: metrics are served by HTTP
        metrics.sample.window.ms: metrics are counters; Prometheus makes the windows
        metrics.num.samples: metrics are counters; Prometheus makes the windows
        metrics.recording.level: use `metrics.level`
    """),
    *rows(Scope.REST, Verdict.HONOURED, rf"""
        mirrorflow.http.listeners: REST, health, progress and metrics; default `listeners`, in an mm2.properties none; port 0 is any free one
        listeners [http://:8083]: where several nodes call each other, in an mm2.properties for that alone
        listeners.https.*: TLS of HTTP; where any is given, plain `ssl.*` do not count for it
        ssl.client.auth: none, requested or required
        mirrorflow.http.client.auth: the same where no other node calls: of all of these, if `listeners` is the nodes' own, else of all but the first; default `ssl.client.auth`
        {INTERNAL_REST_KEY} [false]: with false, a `distributed` worker is the only node; with true, processes with the same `group.id` share the work. Processes with an mm2.properties always do; true has them call each other, which Java nodes need
        rest.advertised.host.name: where other nodes reach this one, and its name in statuses; default as it listens
        rest.advertised.port: where other nodes reach this one, and its name in statuses; default as it listens
        rest.modify.enable: default true in `distributed`, as in Connect; else false: POST, PUT, PATCH and DELETE answer 403 (KIP-304)
    """),
    *rows(Scope.REST, Verdict.HONOURED, rf"""
        {SERVER_NAME_KEY}: the name that the certificates of other nodes must have, where all share one; default the host that is called
    """, needs=INTERNAL_REST_KEY),
    *rows(Scope.REST, Verdict.IGNORED, r"""
        rest.advertised.listener: other nodes come to the first listener
        access.control.allow.*: browsers of other origins are not admitted
        response.http.headers.config: answers have no further headers
        rest.host.name: removed from Kafka; use `listeners`
        rest.port: removed from Kafka; use `listeners`
    """),
    *rows(Scope.REST, Verdict.REFUSED, r"""
        rest.extension.classes: extensions are Java classes; in an mm2.properties ignored, as in MM2
        admin.listeners: there are no admin resources; in an mm2.properties ignored, as in MM2
        admin.listeners.*: there are no admin resources; in an mm2.properties ignored, as in MM2
    """),
    *rows(Scope.DRIVER, Verdict.HONOURED, r"""
        clusters: the aliases; required
    """),
    *rows(Scope.CLIENT, Verdict.HONOURED, """
        bootstrap.servers: host:port, separated by commas
        client.id: put before MM2's own name of the client, as MM2 does; of the worker's `producer.` and of `producer.override.` it is the whole name, as in Connect
        client.rack: reads from the nearest replica (KIP-392)
        auto.offset.reset [earliest]: of the source consumer: `earliest`, `latest`, `by_duration:PT1H`; only for partitions never copied
        isolation.level [read_uncommitted]: of the source consumer: `read_uncommitted` or `read_committed`
        transaction.timeout.ms [60000]: of the target producer, from 5000: after that the target's coordinator aborts a transaction that its task has not committed, and its records are copied again
    """),
    *(
        Key(name=name, scope=Scope.CLIENT, verdict=Verdict(treatment), note=why)
        for name in SECURITY_KEYS
        for treatment, why in [verdict(name)]
    ),
    *rows(Scope.CLIENT, Verdict.MAPPED, f"""
        acks: always all
        enable.idempotence: always; each task writes with producer ids of its own
        max.in.flight.requests.per.connection: one batch of a partition until its leader knows the producer, then more
        retries: what time may heal is retried without end, and reported
        delivery.timeout.ms: what time may heal is retried without end, and reported
        max.block.ms: a slow partition holds up no other
        enable.auto.commit: always false, as in MM2
        group.id: partitions are assigned, no group is joined, as in MM2
        compression.type: {_BATCHES}; the target topic's own setting counts
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

WORKER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.REST, Scope.CLIENT)
CONNECTOR_SCOPES: tuple[Scope, ...] = (Scope.CONNECTOR, Scope.CLIENT)
CLUSTER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.CLIENT)
DRIVER_SCOPES: tuple[Scope, ...] = (Scope.DRIVER, Scope.CONNECTOR, Scope.WORKER, Scope.REST, Scope.CLIENT)

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
        if key is None:
            warnings.append(f"{prefix}{name}: unknown, it has no effect{_suggestion(name, scopes)}")
        elif key.verdict is Verdict.REFUSED and not key.accepts(value):
            if Scope.DRIVER in scopes and key.scope is Scope.REST:
                warnings.append(f"{prefix}{name}: it has no effect in mm2 mode, as in Java.")
            elif Scope.DRIVER in scopes and not key.top_level:
                warnings.append(f"{prefix}{name}: it has no effect at the top level, as in MM2.")
            else:
                raise RefusedSettingError(key=prefix + name, why=key.note)
        elif (
            (key.verdict is Verdict.IGNORED and key.warns)
            or _lacks_required_key(key, properties, scopes)
            or _configures_unlisted_transform(name, properties)
        ):
            ineffective.append(prefix + name)
    if ineffective:
        warnings.append(f"Without effect here (docs/settings.md says why): {', '.join(sorted(ineffective))}.")


def document() -> str:
    """Returns docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Every setting of MirrorMaker 2, Kafka Connect and Kafka's clients that MirrorFlow knows, and how it is treated.",
        "Generated by `python -m mirrorflow_replicator.config.setting_table`; a test compares it with the code.",
        "",
        "- **honoured**: it does what it does in Java.",
        "- **mapped**: its purpose is served in another way, described in the note.",
        "- **ignored**: it has no effect, because nothing here corresponds to it.",
        "- **refused**: the process does not start, because it would copy something else than requested.",
        "",
        "Any other key has no effect, and causes a warning that names it when the process starts.",
        "",
        "These spellings are read too, with a warning: "
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
        bool(key.needs)
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


def _suggestion(name: str, scopes: tuple[Scope, ...]) -> str:
    names = [key.name for key in KEYS if key.scope in scopes and "*" not in key.name]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"; did you mean {close[0]}?" if close else "."


# Lists of expressions, secrets, PEM text, and names that the user chooses.
_FREE_TEXT = re.compile(
    r"(.*\.)?(topics|groups|topics\.exclude|groups\.exclude|config\.properties\.exclude"
    r"|jaas\.config|password|secret|certificates|certificate\.chain|keystore\.key|scope|client\.id|client\.rack|name)"
)


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
