"""Which guarantee will hold on a target, and why (docs/exactly-once.md), before anything runs. Nothing is changed.

Records that are fresh are protected by their sequence alone. Old ones need a transaction of the flow's own id; where that
cannot be had, a single writer copies them once.
"""

from mirrorflow_cli.findings import Findings
from mirrorflow_replicator.errors import NotAuthorizedError
from mirrorflow_replicator.flow.identity import Identity, identity_topic, transactional_id
from mirrorflow_replicator.flow.report import Guarantee
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.runtime.pinning import expiries
from mirrorflow_replicator.settings import SourceSettings

# What a transaction of the flow's id needs: api key -> name.
TRANSACTION_APIS = {24: "AddPartitionsToTxn", 26: "EndTxn"}
HOUR_MS = 3_600_000


async def check_guarantee(
    target: Cluster, settings: SourceSettings, findings: Findings, *, may_write: bool
) -> None:
    """Say it. *may_write*: whether the flow's user may write by the flow's transactional id. Raises ClusterError."""
    name = transactional_id(settings.source_alias)
    decided = await _decided(target, settings)
    why = await _why_not(target, name, decided, may_write=may_write)
    if not why:
        findings.fact(
            f"{settings.target_alias} gives {Guarantee.EXACTLY_ONCE.value}, for old records too, in transactions of {name}"
        )
        return
    forgotten_ms, _ = await expiries(target)
    findings.note(
        f"{settings.target_alias} gives {Guarantee.EXACTLY_ONCE.value}, but only {Guarantee.SINGLE_WRITER.value} for "
        f"records older than {forgotten_ms / 2 / HOUR_MS:g} h, because {why}: run one replicator of this flow at a time."
    )


async def _why_not(target: Cluster, name: str, decided: Identity | None, *, may_write: bool) -> str:
    """Half a sentence; "" where transactions of *name* can be had."""
    for node_id in sorted(target.metadata.brokers):
        versions = (await target.connection(node_id)).versions
        for key, api in TRANSACTION_APIS.items():
            if key not in versions:
                return f"broker {node_id} does not offer {api}"
    if not may_write:
        return f"Write on transactional id {name} is not granted"
    if decided is not None and not decided.transactional_id:
        return f"the flow began when it could not write by transactional id {name}, which holds until its next generation"
    if decided is None and not await admin.may_coordinate(target):
        return "its brokers are fewer than transaction.state.log.replication.factor, so it cannot coordinate transactions"
    return ""


async def _decided(target: Cluster, settings: SourceSettings) -> Identity | None:
    """The identity that the flow has, if there is one, and we may read it."""
    topic = identity_topic(settings.source_alias)
    try:
        await target.refresh([topic])
        if target.leader(topic, 0) is None:
            return None
        log = IdentityLog(
            target, settings.source_alias, replication_factor=settings.offsets.replication_factor
        )
        return (await log.read()).identity
    except NotAuthorizedError:
        return None  # `permissions` says so
