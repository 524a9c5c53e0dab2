"""Lists the minimum ACLs of a flow's source connector, on the source and on the target.

`mirrorflow_core.permissions` has the operations. Kafka's ACLs have no regexes: a pattern that is neither a name nor a prefix becomes `*`.
`companion_grants` lists the ACLs of the other connectors.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirrorflow_core.connect.offset_map_records import offset_map_topic
from mirrorflow_core.naming.patterns import literal_name
from mirrorflow_core.naming.replication_policy import ReplicationPolicy, make_policy
from mirrorflow_core.permissions import (
    ACLS_READ,
    ACLS_WRITTEN,
    GROUP_OF_NODES,
    LOG,
    SOURCE_TOPIC,
    STORE,
    TRANSACTIONAL_ID,
    WRITTEN_SYNCS,
    Access,
    copied_topic,
)
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_core.writer.identity import identity_topic
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.api.spec import MirrorFlow, NamingPolicy, Side, SyncMode
from mirrorflow_operator.plan.naming import policy_settings
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.properties import is_silent
from mirrorflow_operator.plan.replica_sharing import is_shared, own_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One kafka-acls command; `kind` is its resource flag (topic, group, transactional-id, cluster)."""

    kind: str
    name: str
    access: Access
    prefixed: bool = False


def source_grants(flow: MirrorFlow) -> Iterator[Grant]:
    """Yields the ACLs that the source connector needs on the source."""
    for name, prefixed in patterns(flow.spec.topics.include):
        yield Grant(kind="topic", name=name, access=SOURCE_TOPIC, prefixed=prefixed)
    if "*" not in [name for name, _ in patterns(flow.spec.topics.include)]:
        # Heartbeats are always copied, whatever the flow's topics: they show that the flow is alive.
        yield Grant(kind="topic", name="heartbeats", access=SOURCE_TOPIC)
    if flow.spec.offset_syncs.location is Side.SOURCE and not _is_silent(flow):
        yield _syncs_grant(flow, flow.spec.target.alias)
    if flow.spec.topics.acls.sync is not SyncMode.OFF:
        yield Grant(kind="cluster", name="", access=ACLS_READ)


def target_grants(flow: MirrorFlow) -> Iterator[Grant]:
    """Yields the ACLs that the source connector needs on the target."""
    spec = flow.spec
    configs = spec.topics.configs.sync
    on_copies = copied_topic(
        reads_configs=configs is not SyncMode.OFF, alters_configs=configs is SyncMode.APPLY
    )
    remote = remote_patterns(flow)
    for name, prefixed in remote:
        yield Grant(kind="topic", name=name, access=on_copies, prefixed=prefixed)
    if spec.topics.naming.policy is NamingPolicy.IDENTITY and "*" not in [name for name, _ in remote]:
        # Heartbeats are always copied, and never under their own name.
        name = f"{spec.source.alias}{spec.topics.naming.separator}heartbeats"
        yield Grant(kind="topic", name=name, access=on_copies)
    yield Grant(kind="topic", name=f"mm2-offsets.{spec.source.alias}.internal", access=STORE)
    yield Grant(kind="topic", name=claims_topic(spec.source.alias), access=LOG)
    if not _is_silent(flow):
        yield Grant(kind="topic", name=offset_map_topic(spec.source.alias), access=LOG)
        if spec.offset_syncs.location is Side.TARGET:
            yield _syncs_grant(flow, spec.source.alias)
    yield from group_grants(flow, ConnectorKind.SOURCE, spec.connectors.source)
    ids = TransactionalIds(spec.source.alias).prefix
    yield Grant(kind="transactional-id", name=ids, access=TRANSACTIONAL_ID, prefixed=True)
    if spec.topics.acls.sync is SyncMode.APPLY or spec.seed is not None:
        # Which ACLs and which retention the flow has set is stored there.
        yield Grant(kind="topic", name=identity_topic(spec.source.alias), access=LOG)
    if spec.topics.acls.sync is not SyncMode.OFF:
        apply = spec.topics.acls.sync is SyncMode.APPLY
        yield Grant(kind="cluster", name="", access=ACLS_WRITTEN if apply else ACLS_READ)


def group_grants(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> Iterator[Grant]:
    """Yields the ACLs that pods of *connector* need on the target to share work; none for a single pod."""
    if is_shared(connector):
        group, *topics = own_topics(flow, kind, connector)
        yield Grant(kind="group", name=group, access=GROUP_OF_NODES)
        for topic in topics:
            yield Grant(kind="topic", name=topic, access=STORE)


def remote_patterns(flow: MirrorFlow) -> list[tuple[str, bool]]:
    """Returns the names of the copies, in the form that `patterns` returns."""
    naming = flow.spec.topics.naming
    if naming.policy is NamingPolicy.PREFIX:
        return [(flow.spec.source.alias + naming.separator, True)]
    return patterns(flow.spec.topics.include)


def _is_silent(flow: MirrorFlow) -> bool:
    return is_silent(flow.spec.connectors.source.config)


def internal_names(flow: MirrorFlow) -> ReplicationPolicy:
    """Returns the policy that names MM2's internal topics; every naming policy names them alike."""
    return make_policy(policy_settings(flow))


def _syncs_grant(flow: MirrorFlow, other_alias: str) -> Grant:
    topic = internal_names(flow).offset_syncs_topic(other_alias)
    return Grant(kind="topic", name=topic, access=WRITTEN_SYNCS)


def patterns(include: Sequence[str]) -> list[tuple[str, bool]]:
    """Returns (name, whether it is a prefix) for each pattern.

    Returns a single `*` if any pattern is neither a name nor a prefix.
    """
    found: list[tuple[str, bool]] = []
    for pattern in include:
        prefix = pattern.removesuffix(".*")
        if literal_name(prefix) is None:
            return [("*", False)]
        # An unescaped dot before the star matches any character, so only the text before it is a sure prefix.
        name = re.split(r"(?<!\\)\.", prefix)[0] if prefix != pattern else prefix
        if not name:
            return [("*", False)]
        found.append((name.replace("\\", ""), prefix != pattern))
    return found
