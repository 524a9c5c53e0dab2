"""Parses DistributedConfig's group keys into `GroupSettings`: the group that a distributed worker joins.

Processes with an mm2.properties always join the group of each flow, as Java's do. A distributed worker is the
only node unless `dedicated.mode.enable.internal.rest=true` (KIP-710's key): it then need not wait for other
nodes, nor accept their calls.
"""

from collections.abc import Mapping

from mirrorflow_core.connect.group_protocol import PROTOCOLS
from mirrorflow_core.connect.session_keys import ALGORITHMS, DEFAULT_ALGORITHM
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.property_reader import PropertyReader
from mirrorflow_core.settings import GroupSettings, SessionKeySettings
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.worker_keys import SERVER_NAME_KEY, SEVERAL_KEY

EXACTLY_ONCE_KEY = "exactly.once.source.support"
SESSION_MS = 10_000  # Connect's
HEARTBEAT_MS = 500  # Connect's is 3000; a node learns of a rebalance at its next heartbeat
REBALANCE_MS = 30_000  # Connect's is 60000; our nodes rejoin as soon as they learn of it
KEY_TTL_MS = 3_600_000  # Connect's


def _is_exactly_once(read: PropertyReader) -> bool:
    """Whether Java's nodes of the group, if any, write in transactions."""
    return read.text(EXACTLY_ONCE_KEY, "disabled") == "enabled"


def group_settings(
    read: PropertyReader, worker: Mapping[str, str], target_alias: str, *, flow: tuple[str, str] | None = None
) -> GroupSettings | None:
    """Returns the group of the *worker* that *read* reads; None for a distributed worker that is alone.

    *flow* as in `GroupSettings`. Raises InvalidSettingError, RefusedSettingError.
    """
    if flow is None and not read.flag(SEVERAL_KEY, default=False):
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
