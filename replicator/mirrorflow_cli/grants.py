"""Lists the minimum ACLs of a flow's source connector, on the source and on the target.

Source: read and describe the copied topics and their settings. Target: create and write the copies and the
flow's internal topics, read them back (the offsets, the identity, and DescribeProducers, which needs READ),
and use the transactional id of the flow's identity. Both: describe ACLs if they are synchronised, and on the
target alter them. Kafka's ACLs have no regexes: a pattern that is neither a name nor a prefix becomes `*`.
`companion_grants` lists the ACLs of the other connectors.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirrorflow_core.connect.offset_map_records import offset_map_topic
from mirrorflow_core.exactly_once.identity import identity_topic, transactional_id
from mirrorflow_core.naming.replication_policy import ReplicationPolicy, make_policy
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.api.groups import Side
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.topics import NamingPolicy, SyncMode
from mirrorflow_operator.plan.naming import policy_settings
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.properties import is_silent
from mirrorflow_operator.plan.replica_sharing import is_shared, own_topics

_NAME = re.compile(r"(?:[a-zA-Z0-9_-]|\\?\.)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One kafka-acls command; `kind` is its resource flag (topic, group, transactional-id, cluster)."""

    kind: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def source_grants(flow: MirrorFlow) -> Iterator[Grant]:
    """Yields the ACLs that the source connector needs on the source."""
    for name, prefixed in patterns(flow.spec.topics.include):
        yield Grant(
            kind="topic", name=name, operations=("Read", "Describe", "DescribeConfigs"), prefixed=prefixed
        )
    if "*" not in [name for name, _ in patterns(flow.spec.topics.include)]:
        # Heartbeats are always copied, whatever the flow's topics: they show that the flow is alive.
        yield Grant(kind="topic", name="heartbeats", operations=("Read", "Describe", "DescribeConfigs"))
    if flow.spec.offset_syncs.location is Side.SOURCE and not _is_silent(flow):
        yield _syncs_grant(flow, flow.spec.target.alias, "DescribeConfigs")
    if flow.spec.topics.acls.sync is not SyncMode.OFF:
        yield Grant(kind="cluster", name="", operations=("Describe",))


def target_grants(flow: MirrorFlow) -> Iterator[Grant]:
    """Yields the ACLs that the source connector needs on the target."""
    spec = flow.spec
    on_copies = ["Create", "Write", "Read", "Describe", "Alter"]
    if spec.topics.configs.sync is not SyncMode.OFF:
        on_copies.append("DescribeConfigs")
    if spec.topics.configs.sync is SyncMode.APPLY:
        on_copies.append("AlterConfigs")
    remote = remote_patterns(flow)
    for name, prefixed in remote:
        yield Grant(kind="topic", name=name, operations=tuple(on_copies), prefixed=prefixed)
    if spec.topics.naming.policy is NamingPolicy.IDENTITY and "*" not in [name for name, _ in remote]:
        # Heartbeats are always copied, and never under their own name.
        name = f"{spec.source.alias}{spec.topics.naming.separator}heartbeats"
        yield Grant(kind="topic", name=name, operations=tuple(on_copies))
    has_owner = spec.connectors.source.config.get("mirrorflow.writer", "sequences") != "sequences"
    own_topic = claims_topic if has_owner else identity_topic
    for name in (f"mm2-offsets.{spec.source.alias}.internal", own_topic(spec.source.alias)):
        yield Grant(
            kind="topic", name=name, operations=("Create", "Write", "Read", "Describe", "DescribeConfigs")
        )
    if not _is_silent(flow):
        map_topic = offset_map_topic(spec.source.alias)
        operations = ("Create", "Write", "Read", "Describe", "DescribeConfigs")
        yield Grant(kind="topic", name=map_topic, operations=operations)
        if spec.offset_syncs.location is Side.TARGET:
            yield _syncs_grant(flow, spec.source.alias, "DescribeConfigs")
    yield from group_grants(flow, ConnectorKind.SOURCE, spec.connectors.source)
    ids = TransactionalIds(spec.source.alias).prefix if has_owner else transactional_id(spec.source.alias)
    yield Grant(kind="transactional-id", name=ids, operations=("Write", "Describe"), prefixed=has_owner)
    if spec.topics.acls.sync is not SyncMode.OFF:
        apply = spec.topics.acls.sync is SyncMode.APPLY
        yield Grant(kind="cluster", name="", operations=("Describe", "Alter") if apply else ("Describe",))


def group_grants(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> Iterator[Grant]:
    """Yields the ACLs that pods of *connector* need on the target to share work; none for a single pod."""
    if is_shared(connector):
        group, *topics = own_topics(flow, kind, connector)
        yield Grant(kind="group", name=group, operations=("Read", "Describe"))
        for topic in topics:
            operations = ("Create", "Write", "Read", "Describe", "DescribeConfigs")
            yield Grant(kind="topic", name=topic, operations=operations)


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


def _syncs_grant(flow: MirrorFlow, other_alias: str, *more: str) -> Grant:
    topic = internal_names(flow).offset_syncs_topic(other_alias)
    return Grant(kind="topic", name=topic, operations=("Create", "Write", "Describe", *more))


def patterns(include: Sequence[str]) -> list[tuple[str, bool]]:
    """Returns (name, whether it is a prefix) for each pattern.

    Returns a single `*` if any pattern is neither a name nor a prefix.
    """
    found: list[tuple[str, bool]] = []
    for pattern in include:
        prefix = pattern.removesuffix(".*")
        if not _NAME.fullmatch(prefix):
            return [("*", False)]
        # An unescaped dot before the star matches any character, so only the text before it is a sure prefix.
        name = re.split(r"(?<!\\)\.", prefix)[0] if prefix != pattern else prefix
        if not name:
            return [("*", False)]
        found.append((name.replace("\\", ""), prefix != pattern))
    return found
