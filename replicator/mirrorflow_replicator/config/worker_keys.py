"""The keys of the Connect worker, its REST server and MM2's driver, and a warning of converters.

They are those of WorkerConfig, DistributedConfig, RestServerConfig and MirrorMakerConfig of Kafka 4.3, and of
KIP-304.

MM2's connectors emit byte arrays, which Java's worker passes through its converters. With Kafka's stock files,
which name JsonConverter, it writes every record as base64 inside JSON. Copies here are always the bytes of the
source, so a connector that would inherit converters causes a warning.
"""

from collections.abc import Mapping

from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows

CONVERTER_KEYS = ("key.converter", "value.converter", "header.converter")
CONVERTER_NOT_USED = "ConverterNotUsed"
BYTE_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"


def converter_warnings(properties: Mapping[str, str], worker: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a warning if the connector with *properties* inherits converters of *worker* that change bytes.

    It contains no property's value except the simple name of a class.
    """
    inherited = {
        key: worker[key].strip().rpartition(".")[2]
        for key in CONVERTER_KEYS
        if worker.get(key, "").strip() and key not in properties
    }
    changing = {key: name for key, name in inherited.items() if name != BYTE_CONVERTER.rpartition(".")[2]}
    if not changing:
        return ()
    found = ", ".join(f"{key}={name}" for key, name in changing.items())
    sentence = (
        f"{CONVERTER_NOT_USED}: the worker has {found}, which Java's worker would apply to every record of this connector. "
        f"Records are copied byte for byte instead. To have the same with Java, and no warning, set {_joined(changing)} "
        f"to {BYTE_CONVERTER} in the connector."
    )
    return (sentence,)


def _joined(keys: Mapping[str, str]) -> str:
    *most, last = keys
    return f"{', '.join(most)} and {last}" if most else last


SEVERAL_KEY = "dedicated.mode.enable.internal.rest"
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

WORKER_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.WORKER,
        Verdict.HONOURED,
        (
            ("bootstrap.servers", "the target cluster"),
            ("client.id", "part of the names of the worker's own clients"),
            (
                "group.id",
                "the group of nodes, default `<source>-mm2` in an mm2.properties; part of the names of the worker's own clients",
            ),
            (
                "offset.storage.store",
                "`kafka` (default) or `file` (KIP-304); in `distributed` always `kafka`",
            ),
            (
                "offset.storage.topic",
                "default `mm2-offsets.<source>.internal`; `offset.storage.kafka.topic` is the same",
            ),
            ("offset.storage.partitions", "default 25"),
            ("offset.storage.replication.factor", "default -1, the target's default; Connect's is 3"),
            ("offset.storage.file.filename", "where positions are kept with `offset.storage.store=file`"),
            ("offset.storage.cleanup.policy", "always `compact`, as in Connect"),
            ("offset.storage.*", "settings of the offsets topic, and the connection of its client"),
            ("config.storage.topic", f"connectors and what is wanted of them: {_NO_TOPIC.format('configs')}"),
            (
                "config.storage.*",
                "replication factor (default -1, Connect's is 3) and settings of that topic",
            ),
            ("status.storage.topic", f"how connectors and tasks fare: {_NO_TOPIC.format('status')}"),
            ("status.storage.*", "partitions (default 5), replication factor and settings of that topic"),
            ("offset.flush.interval.ms", "default 5000, Connect's is 60000"),
            ("task.shutdown.graceful.timeout.ms", "default 5000"),
            (
                "config.providers",
                "EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider; a value that changes is followed without a restart",
            ),
            ("config.providers.*", "`class`, `param.allowed.paths`, `param.allowlist.pattern`"),
            ("metrics.level", "`partition` (default), `topic` or `flow`: the level of detail of /metrics"),
        ),
    ),
    *rows(
        Scope.WORKER,
        Verdict.HONOURED,
        (
            (
                "session.timeout.ms",
                f"{_GROUP}: a node that is not heard of for so long is lost; default 10000",
            ),
            ("heartbeat.interval.ms", f"{_GROUP}; default 500, Connect's is 3000"),
            ("rebalance.timeout.ms", f"{_GROUP}; default and at most 30000, Connect's default is 60000"),
            (
                "connect.protocol",
                f"{_GROUP}: `sessioned` (default) or `compatible`; `eager` is refused there",
            ),
            ("inter.worker.key.generation.algorithm", f"{_GROUP}; default HmacSHA256"),
            ("inter.worker.key.size", f"{_GROUP}; default the algorithm's own, 32 bytes for HmacSHA256"),
            (
                "inter.worker.key.ttl.ms",
                f"{_GROUP}: after which the leader makes another key; default 3600000, 0 never",
            ),
            ("inter.worker.signature.algorithm", f"{_GROUP}; default HmacSHA256"),
            ("inter.worker.verification.algorithms", f"{_GROUP}; default HmacSHA256"),
        ),
        needs=SEVERAL_KEY,
    ),
    *rows(
        Scope.WORKER,
        Verdict.MAPPED,
        (
            (
                "exactly.once.source.support",
                "`disabled`, `preparing` or `enabled`: the guarantee is the same with any of them (docs: exactly once)",
            ),
            ("offset.flush.timeout.ms", "every request has its own limit"),
            ("connector.client.config.override.policy", "always All, as in MM2's dedicated mode"),
            ("replication.policy.*", "read from the connectors"),
        ),
    ),
    *(
        Key(
            name=name,
            scope=Scope.WORKER,
            verdict=Verdict.MAPPED,
            note=_CONVERTER,
            accepted=("ByteArrayConverter",),
        )
        for name in CONVERTER_KEYS
    ),
    *rows(
        Scope.WORKER,
        Verdict.IGNORED,
        (
            ("*.converter.*", "there are no converters"),
            ("internal.key.converter", "positions are always JSON without schemas, as in Connect"),
            ("internal.value.converter", "positions are always JSON without schemas, as in Connect"),
            ("internal.topics.automatic.creation.enable", "internal topics that are missing are created"),
            ("plugin.path", "there are no plugins"),
            ("plugin.discovery", "there are no plugins"),
            ("topic.creation.enable", "topics are created as on the source"),
            ("topic.tracking.*", "active topics are always known"),
            ("worker.sync.timeout.ms", "a node that is behind meets the others again after a second"),
            ("worker.unsync.backoff.ms", "a node that is behind meets the others again after a second"),
            (
                "scheduled.rebalance.max.delay.ms",
                "always 0, Connect's is 300000: what a lost node had is given to others at once, for it begins within seconds",
            ),
            ("group.instance.id", "a node that comes again is a new one; others have its work by then"),
            ("metric.reporters", "metrics are served by HTTP; reporters are Java classes"),
            ("auto.include.jmx.reporter", "metrics are served by HTTP"),
            ("metrics.context.*", "metrics are served by HTTP"),
            ("metrics.sample.window.ms", "metrics are counters; Prometheus makes the windows"),
            ("metrics.num.samples", "metrics are counters; Prometheus makes the windows"),
            ("metrics.recording.level", "use `metrics.level`"),
        ),
    ),
)

DRIVER_KEYS: tuple[Key, ...] = (
    *rows(Scope.DRIVER, Verdict.HONOURED, (("clusters", "the aliases; required"),)),
)


REST_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.REST,
        Verdict.HONOURED,
        (
            (
                "mirrorflow.http.listeners",
                "REST, health, progress and metrics; default `listeners`, in an mm2.properties none; port 0 is any free one",
            ),
            (
                "listeners",
                "default `http://:8083`; where several nodes call each other, in an mm2.properties for that alone",
            ),
            ("listeners.https.*", "TLS of HTTP; where any is given, plain `ssl.*` do not count for it"),
            ("ssl.client.auth", "none, requested or required"),
            (
                "mirrorflow.http.client.auth",
                "the same where no other node calls: of all of these, if `listeners` is the nodes' own, else of all but the first; default `ssl.client.auth`",
            ),
            (
                SEVERAL_KEY,
                "default false: a `distributed` worker is the only node; true: processes with the same `group.id` share the work. Processes with an mm2.properties always do; true has them call each other, which Java nodes need",
            ),
            (
                "rest.advertised.host.name",
                "where other nodes reach this one, and its name in statuses; default as it listens",
            ),
            (
                "rest.advertised.port",
                "where other nodes reach this one, and its name in statuses; default as it listens",
            ),
            (
                "rest.modify.enable",
                "default true in `distributed`, as in Connect; else false: POST, PUT, PATCH and DELETE answer 403 (KIP-304)",
            ),
        ),
    ),
    *rows(
        Scope.REST,
        Verdict.HONOURED,
        (
            (
                SERVER_NAME_KEY,
                "the name that the certificates of other nodes must have, where all share one; default the host that is called",
            ),
        ),
        needs=SEVERAL_KEY,
    ),
    *rows(
        Scope.REST,
        Verdict.IGNORED,
        (
            ("rest.advertised.listener", "other nodes come to the first listener"),
            ("access.control.allow.*", "browsers of other origins are not admitted"),
            ("response.http.headers.config", "answers have no further headers"),
            ("rest.host.name", "removed from Kafka; use `listeners`"),
            ("rest.port", "removed from Kafka; use `listeners`"),
        ),
    ),
    *rows(
        Scope.REST,
        Verdict.REFUSED,
        (
            (
                "rest.extension.classes",
                "extensions are Java classes; in an mm2.properties ignored, as in MM2",
            ),
            ("admin.listeners", "there are no admin resources; in an mm2.properties ignored, as in MM2"),
            ("admin.listeners.*", "there are no admin resources; in an mm2.properties ignored, as in MM2"),
        ),
    ),
)
