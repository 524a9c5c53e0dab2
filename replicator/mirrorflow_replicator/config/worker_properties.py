"""Parses worker.properties and connector.properties of standalone or distributed mode: `WorkerSettings`.

Standalone is KIP-304's. The worker's file describes the target, where offsets are stored, and HTTP; each
connector's file has what Connect's REST API would receive. `config.dedicated_mode` derives the same two kinds
of properties from an mm2.properties and then also calls `worker_settings`.

DistributedConfig's group keys become `GroupSettings`: the group that a distributed worker joins. Processes
with an mm2.properties always join the group of each flow, as Java's do. A distributed worker is the only node
unless `dedicated.mode.enable.internal.rest=true` (KIP-710's key): it then need not wait for other nodes, nor
accept their calls.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from mirrorflow_core import setting_table
from mirrorflow_core.connect.group_assignment import PROTOCOLS
from mirrorflow_core.connect.session_keys import ALGORITHMS
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import worker_topic
from mirrorflow_core.setting_table import (
    DEFAULTS,
    INTERNAL_REST_KEY,
    SERVER_NAME_KEY,
    read_properties,
)
from mirrorflow_core.settings import (
    DistributedSettings,
    GroupSettings,
    HttpSettings,
    MetricNames,
    MetricsLevel,
    OffsetStorageSettings,
    SessionKeySettings,
    WorkerSettings,
)
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.connector_settings import parse_connector
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver
from mirrorflow_replicator.config.storage import offset_storage, worker_topics

LISTENERS_KEY = "listeners"
STANDALONE = "standalone"  # the name of a worker in this mode
DISTRIBUTED = "distributed"
HTTP_LISTENERS_KEY = "mirrorflow.http.listeners"
METRIC_NAMES_KEY = "metric.names.formats"
HTTP_CLIENT_AUTH_KEY = "mirrorflow.http.client.auth"
PORT_MAX = 65_535
MODIFY_KEY = "rest.modify.enable"
REBALANCE_MAX_MS = 30_000  # Connect's default is 60000; our nodes rejoin as soon as they learn of it


def load_standalone(
    worker_text: str, connector_texts: Sequence[str], *, now_ms: int | None = None
) -> WorkerSettings:
    """Parses the files of one standalone process; *now_ms* as for `connector.parse_source`.

    Raises InvalidSettingError and RefusedSettingError; what Java would ignore is in `warnings`.
    """
    warnings: list[str] = []
    worker, connectors = _files(worker_text, connector_texts, warnings)
    if not connectors:
        raise InvalidSettingError(
            key="connector.class",
            problem="no connector is given",
            action="name at least one connector.properties",
        )
    reader = PropertyReader(worker, Resolver(worker), DEFAULTS)
    listeners = reader.names("listeners")
    return worker_settings(STANDALONE, worker, connectors, listeners, warnings, now_ms=now_ms)


def load_distributed(worker_text: str, connector_texts: Sequence[str]) -> WorkerSettings:
    """Parses the files of a distributed worker, or of one node of it.

    Its connectors, if any, are written to its config topic. Raises InvalidSettingError and
    RefusedSettingError, also for errors in a connector's properties.
    """
    warnings: list[str] = []
    worker, connectors = _files(worker_text, connector_texts, warnings)
    reader = PropertyReader(worker, Resolver(worker), DEFAULTS)
    if reader.text("offset.storage.store") != "kafka":
        raise RefusedSettingError(
            key="offset.storage.store",
            why="a distributed worker stores positions and connectors in Kafka",
        )
    listeners = reader.names("listeners")
    settings = worker_settings(DISTRIBUTED, worker, connectors, listeners, warnings)
    distributed = distributed_settings(reader, worker, connectors, target_alias=DISTRIBUTED)
    http = settings.http
    if distributed.group is not None and HTTP_LISTENERS_KEY in worker and "listeners" in worker:
        http = dataclasses.replace(http, internal=checked_listeners(listeners))
    return dataclasses.replace(settings, distributed=distributed, http=http)


def distributed_settings(
    read: PropertyReader,
    worker: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    *,
    target_alias: str,
    flow: tuple[str, str] | None = None,
) -> DistributedSettings:
    """Returns what the *worker* that *read* reads keeps in Connect's topics.

    *connectors* are its files; *flow* as in `GroupSettings`. Raises InvalidSettingError, RefusedSettingError.
    """
    return DistributedSettings(
        topics=worker_topics(read, worker, target_alias),
        offsets=_named_offsets(read, worker, target_alias),
        worker=worker,
        seeds=tuple(connectors),
        group=group_settings(read, worker, target_alias, flow=flow),
    )


def _named_offsets(
    read: PropertyReader, worker: Mapping[str, str], target_alias: str
) -> OffsetStorageSettings | None:
    client = clients.client_settings(target_alias, "admin", clients.shared(worker))
    named = offset_storage(read, worker, "", client)
    return None if named.topic == worker_topic("offsets", "") else named


def _files(
    worker_text: str, connector_texts: Sequence[str], warnings: list[str]
) -> tuple[dict[str, str], list[dict[str, str]]]:
    worker = _read(worker_text, warnings)
    setting_table.check(worker, setting_table.WORKER_SCOPES, warnings)
    connectors = []
    for text in connector_texts:
        properties = _read(text, warnings)
        setting_table.check(properties, setting_table.CONNECTOR_SCOPES, warnings)
        connectors.append(properties)
    return worker, connectors


def _read(text: str, warnings: list[str]) -> dict[str, str]:
    return setting_table.canonical(read_properties(text, warnings), warnings)


def worker_settings(
    name: str,
    worker: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    listeners: tuple[str, ...],
    warnings: list[str],
    *,
    now_ms: int | None = None,
) -> WorkerSettings:
    """Returns the settings of a worker, from derived properties whose keys have been checked."""
    # Settings of the whole process may also be in a connector's properties; the worker's value wins.
    process = {
        key: value
        for text in connectors
        for key, value in text.items()
        if key in (HTTP_LISTENERS_KEY, MODIFY_KEY, METRIC_NAMES_KEY, "metrics.level")
    }
    read = PropertyReader(process | dict(worker), Resolver(worker), DEFAULTS)
    parsed = tuple(parse_connector(properties, worker, now_ms=now_ms) for properties in connectors)
    names = [connector.name for connector in parsed]
    for duplicate in {name for name in names if names.count(name) > 1}:
        raise InvalidSettingError(
            key="name", problem=f"two connectors are named {duplicate!r}", action="give each its own name"
        )
    # Read only to validate its value: each record is admitted once with any of them.
    read.choice("exactly.once.source.support", ("disabled", "preparing", "enabled"), "disabled")
    level = read.choice("metrics.level", tuple(level.value for level in MetricsLevel))
    return WorkerSettings(
        name=name,
        connectors=parsed,
        http=HttpSettings(
            listeners=checked_listeners(read.names(HTTP_LISTENERS_KEY, listeners)),
            modify_enabled=read.flag(MODIFY_KEY, default=name == DISTRIBUTED),
            tls=clients.with_prefix(worker, "listeners.https.")
            or {key: value for key, value in worker.items() if key.startswith("ssl.")},
            others_client_auth=worker.get(HTTP_CLIENT_AUTH_KEY) or None,
            advertised_host=read.text("rest.advertised.host.name") or None,
            advertised_port=read.whole("rest.advertised.port", 0, minimum=0, maximum=PORT_MAX),
        ),
        metrics_level=MetricsLevel(level),
        metric_names=_metric_names(read),
        shutdown_s=read.whole("task.shutdown.graceful.timeout.ms", minimum=0) / 1000,
        warnings=tuple(dict.fromkeys(warnings)),
        providers={key: value for key, value in worker.items() if key.startswith(PROVIDERS_KEY)},
        shared=clients.shared(worker),
    )


def _metric_names(read: PropertyReader) -> frozenset[MetricNames]:
    """Returns the forms of MM2's metrics that /metrics has. Raises InvalidSettingError."""
    known = {form.value: form for form in MetricNames}
    given = read.names(METRIC_NAMES_KEY, (MetricNames.LEGACY.value,))
    if unknown := [name for name in given if name not in known]:
        raise InvalidSettingError(key=METRIC_NAMES_KEY, problem=f"{unknown[0]!r} is not {' or '.join(known)}")
    if not given:
        raise InvalidSettingError(key=METRIC_NAMES_KEY, problem=f"it must have {' or '.join(known)}, or both")
    return frozenset(known[name] for name in given)


def checked_listeners(listeners: tuple[str, ...]) -> tuple[str, ...]:
    """Returns *listeners* after checking that each is an address to bind. Raises InvalidSettingError."""
    for listener in listeners:
        parse_listener(listener)
    return listeners


def parse_listener(listener: str) -> tuple[str, str, int]:
    """Returns scheme, host (empty: every address) and port of a listener in Java's form. Raises InvalidSettingError."""
    try:
        parts = urlsplit(listener)
        extra = parts.path.strip("/") or parts.query or parts.username
        if parts.scheme in {"http", "https"} and parts.port is not None and not extra:
            return parts.scheme, parts.hostname or "", parts.port
    except ValueError:  # an invalid port, or a bracket that does not close
        pass
    raise InvalidSettingError(
        key=LISTENERS_KEY,
        problem=f"{listener!r} is not a listener address",
        action="write http://host:port or https://host:port",
    )


def group_settings(
    read: PropertyReader, worker: Mapping[str, str], target_alias: str, *, flow: tuple[str, str] | None = None
) -> GroupSettings | None:
    """Returns the group of the *worker* that *read* reads; None for a distributed worker that is the only node.

    *flow* as in `GroupSettings`. Raises InvalidSettingError, RefusedSettingError.
    """
    if flow is None and not read.flag(INTERNAL_REST_KEY):
        return None
    group_id = read.required(
        "group.id", action="set the same group on all nodes, and use it for no other group"
    )
    protocol = read.choice("connect.protocol", ("sessioned", "compatible", "eager"))
    if protocol == "eager":
        raise RefusedSettingError(
            key="connect.protocol",
            why="with the eager protocol all nodes stop at each change; write sessioned, or compatible",
        )
    session_ms = read.whole("session.timeout.ms", minimum=1)
    heartbeat_ms = read.whole("heartbeat.interval.ms", minimum=1)
    if heartbeat_ms >= session_ms:
        raise InvalidSettingError(
            key="heartbeat.interval.ms",
            problem=f"{heartbeat_ms} is not below session.timeout.ms={session_ms}",
            action="write a third of it, or less",
        )
    base = "-".join(filter(None, (group_id, worker.get("client.id", "").strip())))
    return GroupSettings(
        group_id=group_id,
        client=clients.client_settings(target_alias, base, clients.shared(worker)),
        protocols=tuple(PROTOCOLS) if protocol == "sessioned" else ("compatible",),
        session_s=session_ms / 1000,
        heartbeat_s=heartbeat_ms / 1000,
        rebalance_s=read.whole("rebalance.timeout.ms", minimum=1_000, maximum=REBALANCE_MAX_MS) / 1000,
        keys=_session_keys(read),
        server_name=read.text(SERVER_NAME_KEY) or None,
        flow=flow,
        fences_java=read.text("exactly.once.source.support")
        == "enabled",  # then Java's nodes write in transactions
    )


def _session_keys(read: PropertyReader) -> SessionKeySettings:
    names = tuple(ALGORITHMS)
    algorithm = read.choice("inter.worker.key.generation.algorithm", names)
    signature = read.choice("inter.worker.signature.algorithm", names)
    accepted = read.names("inter.worker.verification.algorithms")
    if signature not in accepted:
        raise InvalidSettingError(
            key="inter.worker.verification.algorithms",
            problem=f"it lacks inter.worker.signature.algorithm={signature}, so nodes would refuse each other",
            action=f"add {signature}",
        )
    return SessionKeySettings(
        algorithm=algorithm,
        size_bytes=read.whole("inter.worker.key.size", ALGORITHMS[algorithm][1], minimum=16, maximum=1024),
        ttl_ms=read.whole("inter.worker.key.ttl.ms", minimum=0),
        signature=signature,
        accepted=accepted,
    )
