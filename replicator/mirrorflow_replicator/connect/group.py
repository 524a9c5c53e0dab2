"""The group that a distributed worker is a node of: DistributedConfig's keys -> `GroupSettings`.

A worker is the only node unless `dedicated.mode.enable.internal.rest=true` (KIP-710's key): who starts one process need
not wait for others that do not exist, nor be called by any.
"""

from collections.abc import Mapping

from mirrorflow_replicator.connect import clients
from mirrorflow_replicator.connect.group_protocol import PROTOCOLS
from mirrorflow_replicator.connect.session_keys import ALGORITHMS, DEFAULT_ALGORITHM
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.connect.worker_keys import SERVER_NAME_KEY, SEVERAL_KEY, WITH_JAVA_KEY
from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_replicator.settings import GroupSettings, SessionKeySettings

EXACTLY_ONCE_KEY = "exactly.once.source.support"
PORT_MAX = 65_535
SESSION_MS = 10_000  # Connect's
HEARTBEAT_MS = 500  # Connect's is 3000; a node hears of a meeting by its next heartbeat
REBALANCE_MS = 30_000  # Connect's is 60000; ours come as soon as they hear of it
KEY_TTL_MS = 3_600_000  # Connect's


def _is_exactly_once(read: PropertyReader) -> bool:
    """Whether Java's nodes of the group, if there are any, write in transactions."""
    return read.text(EXACTLY_ONCE_KEY, "disabled") == "enabled"


def is_with_java(read: PropertyReader) -> bool:
    """Whether Java's tasks and ours of the worker that *read* reads follow each other exactly. Raises InvalidSettingError."""
    asked = read.flag(WITH_JAVA_KEY, default=False)
    if asked and not _is_exactly_once(read):
        raise InvalidSettingError(
            key=WITH_JAVA_KEY,
            problem=f"Java's tasks write in transactions with {EXACTLY_ONCE_KEY}=enabled alone",
            action=f"set {EXACTLY_ONCE_KEY}=enabled for all nodes, or leave {WITH_JAVA_KEY} out",
        )
    return asked and read.flag(SEVERAL_KEY, default=False)


def group_settings(
    read: PropertyReader, worker: Mapping[str, str], target_alias: str, *, flow: tuple[str, str] | None = None
) -> GroupSettings | None:
    """The group of the *worker* that *read* reads; None for the only node. *flow* as in `GroupSettings`.

    Raises InvalidSettingError, RefusedSettingError.
    """
    if not read.flag(SEVERAL_KEY, default=False):
        return None
    group_id = read.required("group.id", action="give all nodes the same, and no other group its name")
    protocol = read.choice("connect.protocol", ("sessioned", "compatible", "eager"), "sessioned")
    if protocol == "eager":
        raise RefusedSettingError(
            key="connect.protocol",
            why="with the eager protocol all nodes stop at each change; write sessioned, or compatible",
        )
    session_ms = read.whole("session.timeout.ms", SESSION_MS, minimum=1)
    heartbeat_ms = read.whole("heartbeat.interval.ms", HEARTBEAT_MS, minimum=1)
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
        rebalance_s=read.whole("rebalance.timeout.ms", REBALANCE_MS, minimum=1_000, maximum=REBALANCE_MS)
        / 1000,
        keys=_keys(read),
        advertised_host=read.text("rest.advertised.host.name"),
        advertised_port=read.whole("rest.advertised.port", 0, minimum=0, maximum=PORT_MAX),
        server_name=read.text(SERVER_NAME_KEY),
        flow=flow,
        fences_java=_is_exactly_once(read),
    )


def _keys(read: PropertyReader) -> SessionKeySettings:
    names = tuple(ALGORITHMS)
    algorithm = read.choice("inter.worker.key.generation.algorithm", names, DEFAULT_ALGORITHM)
    signature = read.choice("inter.worker.signature.algorithm", names, DEFAULT_ALGORITHM)
    accepted = read.names("inter.worker.verification.algorithms", (DEFAULT_ALGORITHM,))
    if signature not in accepted:
        raise InvalidSettingError(
            key="inter.worker.verification.algorithms",
            problem=f"it lacks inter.worker.signature.algorithm={signature}, so nodes would refuse each other",
            action=f"add {signature}",
        )
    return SessionKeySettings(
        algorithm=algorithm,
        size_bytes=read.whole("inter.worker.key.size", ALGORITHMS[algorithm][1], minimum=16, maximum=1024),
        ttl_ms=read.whole("inter.worker.key.ttl.ms", KEY_TTL_MS, minimum=0),
        signature=signature,
        accepted=accepted,
    )
