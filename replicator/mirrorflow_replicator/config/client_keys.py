"""The keys of Kafka's consumers, producers and admin clients.

They are those of ConsumerConfig, ProducerConfig and AdminClientConfig. Security keys and their verdicts are
in `java.security_keys`.
"""

from mirrorflow_core.java.security_keys import SECURITY_KEYS, verdict
from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows

_CONNECTIONS = "the engine has its own connections, with limits of its own"
_FETCHES = "the engine sizes its fetches itself"
_GROUP = "no group is joined"
_BATCHES = "batches are copied as they are"
_METRICS = "metrics are served by HTTP"

_WITHOUT_EFFECT = {
    _CONNECTIONS: """
        request.timeout.ms default.api.timeout.ms connections.max.idle.ms reconnect.backoff.ms reconnect.backoff.max.ms
        retry.backoff.ms retry.backoff.max.ms socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
        send.buffer.bytes receive.buffer.bytes metadata.max.age.ms metadata.max.idle.ms metadata.recovery.strategy
        metadata.recovery.rebootstrap.trigger.ms client.dns.lookup bootstrap.controllers
    """,
    _FETCHES: """
        fetch.min.bytes fetch.max.bytes fetch.max.wait.ms max.partition.fetch.bytes max.poll.records max.poll.interval.ms
    """,
    _GROUP: """
        session.timeout.ms heartbeat.interval.ms group.instance.id partition.assignment.strategy auto.commit.interval.ms
        exclude.internal.topics allow.auto.create.topics group.protocol group.remote.assignor share.acknowledgement.mode
    """,
    _BATCHES: """
        batch.size linger.ms buffer.memory max.request.size compression.gzip.level compression.lz4.level
        compression.zstd.level check.crcs key.serializer value.serializer key.deserializer value.deserializer
        partitioner.ignore.keys partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
        transaction.two.phase.commit.enable
    """,
    _METRICS: """
        metrics.num.samples metrics.sample.window.ms metrics.recording.level metric.reporters auto.include.jmx.reporter
        enable.metrics.push
    """,
}

CLIENT_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.CLIENT,
        Verdict.HONOURED,
        (
            ("bootstrap.servers", "host:port, separated by commas"),
            (
                "client.id",
                (
                    "put before MM2's own name of the client, as MM2 does; of the worker's `producer.` and of "
                    "`producer.override.` it is the whole name, as in Connect"
                ),
            ),
            ("client.rack", "reads from the nearest replica (KIP-392)"),
            (
                "auto.offset.reset",
                (
                    "of the source consumer: `earliest` (MM2's default), `latest`, `by_duration:PT1H`; only for partitions "
                    "never copied"
                ),
            ),
            ("isolation.level", "of the source consumer: `read_uncommitted` (default) or `read_committed`"),
            (
                "transaction.timeout.ms",
                (
                    "of the target producer, from 5000: after that the target's coordinator aborts a transaction that its task "
                    "has not committed, and its records are copied again; default 60000"
                ),
            ),
        ),
    ),
    *(
        Key(
            name=name,
            scope=Scope.CLIENT,
            verdict=Verdict(verdict(name)[0]),
            note=verdict(name)[1],
            accepted=("",),
        )
        for name in SECURITY_KEYS
    ),
    *rows(
        Scope.CLIENT,
        Verdict.MAPPED,
        (
            ("acks", "always all"),
            ("enable.idempotence", "always; each task writes with producer ids of its own"),
            (
                "max.in.flight.requests.per.connection",
                "one batch of a partition until its leader knows the producer, then more",
            ),
            ("retries", "what time may heal is retried without end, and reported"),
            ("delivery.timeout.ms", "what time may heal is retried without end, and reported"),
            ("max.block.ms", "a slow partition holds up no other"),
            ("enable.auto.commit", "always false, as in MM2"),
            ("group.id", "partitions are assigned, no group is joined, as in MM2"),
            ("compression.type", f"{_BATCHES}; the target topic's own setting counts"),
            ("transactional.id", "ids that begin with `mirrorflow:<source alias>:`"),
            ("partitioner.class", "a record keeps its partition, as in MM2"),
        ),
    ),
    *rows(
        Scope.CLIENT,
        Verdict.IGNORED,
        tuple((name, note) for note, names in _WITHOUT_EFFECT.items() for name in names.split()),
        warns=False,
    ),
    Key(
        name="interceptor.classes",
        scope=Scope.CLIENT,
        verdict=Verdict.REFUSED,
        note="interceptors are Java classes",
        accepted=("",),
    ),
)
