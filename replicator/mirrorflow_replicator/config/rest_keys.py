"""The keys of the worker's REST server (RestServerConfig of Kafka 4.3)."""

from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows
from mirrorflow_replicator.config.worker_keys import SERVER_NAME_KEY, SEVERAL_KEY

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
