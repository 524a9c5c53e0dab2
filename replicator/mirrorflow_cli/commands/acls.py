"""`mirrorflow acls`: prints the minimum ACLs of a flow as kafka-acls commands; makes no network connections.

For the file of a pair, it prints those of both flows, and what `mirrorflow switchover` and `mirrorflow diverged` need besides.
`mirrorflow_core.topics.topic_acls` has the operations. Kafka's ACLs have no regexes: a pattern that is neither a
name nor a prefix becomes `*`, and so do copies that a RegexRouter renames by an expression or a prefix. The checkpoint and heartbeat connectors may have their own users.
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flow_arguments import flow_from, layout_from, read_text, valid_plan
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_argument, print_json
from mirrorflow_cli.pair_arguments import pair_from
from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.java.patterns import literal_name
from mirrorflow_core.offsets.group_commits import GROUP_OFFSETS_TOPIC
from mirrorflow_core.replication_policy import ReplicationPolicy, make_policy
from mirrorflow_core.switchover.diverged_tail import TAILS_TOPIC, kept_prefix
from mirrorflow_core.switchover.record import SWITCHOVERS_TOPIC
from mirrorflow_core.topics.retention_hold import identity_topic
from mirrorflow_core.topics.topic_acls import (
    ACLS_READ,
    ACLS_WRITTEN,
    DESCRIBED,
    GROUP_MOVED,
    GROUP_OF_NODES,
    GROUP_READ,
    HEARTBEATS,
    LOG,
    NAMED_FENCE,
    READ_LOG,
    SOURCE_TOPIC,
    STORE,
    TRANSACTIONAL_ID,
    WRITTEN,
    WRITTEN_SYNCS,
    Access,
    copied_topic,
)
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_core.writer.transactional_ids import TAIL_WRITERS, TransactionalIds, switchover_lock
from mirrorflow_operator.api.authentication import Authentication
from mirrorflow_operator.api.mirror_pair import PAIR_KIND, FenceMethod, LoadedPair
from mirrorflow_operator.api.spec import ClusterSpec, MirrorFlow, NamingPolicy, Side, SyncMode
from mirrorflow_operator.api.workloads import Connector, ConnectorKind
from mirrorflow_operator.plan.names import policy_settings, topic_selection_of
from mirrorflow_operator.plan.pod_sharing import group_and_topics
from mirrorflow_operator.plan.properties import disables_offset_syncs
from mirrorflow_replicator.switchover.acl_fence import CANARY_TOPIC

PRINCIPAL_DEFAULT = "User:mirrorflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One kafka-acls command; `kind` is its resource flag (topic, group, transactional-id, cluster)."""

    kind: str
    name: str
    access: Access
    prefixed: bool = False
    purpose: str | None = None  # what the connector does not do without it; None: it does not work without it


def source_grants(flow: MirrorFlow) -> Iterator[Grant]:
    """Yields the ACLs that the source connector needs on the source."""
    for name, prefixed in patterns(flow.spec.topics.include):
        yield Grant(kind="topic", name=name, access=SOURCE_TOPIC, prefixed=prefixed)
    if "*" not in [name for name, _ in patterns(flow.spec.topics.include)]:
        # Heartbeats are always copied, whatever the flow's topics: they show that the flow is alive.
        yield Grant(kind="topic", name="heartbeats", access=SOURCE_TOPIC)
    if flow.spec.topics.naming.policy is NamingPolicy.IDENTITY:
        purpose = "after an unplanned switchover, a flow back that is started too soon waits"
        yield Grant(kind="topic", name=claims_topic(flow.spec.target.alias), access=READ_LOG, purpose=purpose)
    if flow.spec.offset_syncs.location is Side.SOURCE and not _disables_offset_syncs(flow):
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
    heartbeats = topic_selection_of(flow).target_topic("heartbeats")
    if not any(
        heartbeats.startswith(name) if prefixed else name in ("*", heartbeats) for name, prefixed in remote
    ):
        # Heartbeats are always copied, and never under their own name.
        yield Grant(kind="topic", name=heartbeats, access=on_copies)
    yield Grant(kind="topic", name=f"mm2-offsets.{spec.source.alias}.internal", access=STORE)
    yield Grant(kind="topic", name=claims_topic(spec.source.alias), access=LOG)
    if not _disables_offset_syncs(flow):
        yield Grant(kind="topic", name=offset_map_topic(spec.source.alias), access=LOG)
        if spec.offset_syncs.location is Side.TARGET:
            yield _syncs_grant(flow, spec.source.alias)
    yield from group_grants(flow, ConnectorKind.SOURCE, spec.connectors.source)
    ids = TransactionalIds(spec.source.alias).prefix
    yield Grant(kind="transactional-id", name=ids, access=TRANSACTIONAL_ID, prefixed=True)
    if spec.topics.acls.sync is SyncMode.APPLY or spec.seed is not None or spec.restore is not None:
        # It records which ACLs and which retention the flow has set.
        yield Grant(kind="topic", name=identity_topic(spec.source.alias), access=LOG)
    if spec.topics.acls.sync is not SyncMode.OFF:
        apply = spec.topics.acls.sync is SyncMode.APPLY
        yield Grant(kind="cluster", name="", access=ACLS_WRITTEN if apply else ACLS_READ)


def group_grants(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> Iterator[Grant]:
    """Yields the ACLs that pods of *connector* need on the target to share work; none for a single pod."""
    if connector.replicas > 1:
        group, *topics = group_and_topics(flow, kind, connector)
        yield Grant(kind="group", name=group, access=GROUP_OF_NODES)
        for topic in topics:
            yield Grant(kind="topic", name=topic, access=STORE)


def remote_patterns(flow: MirrorFlow) -> list[tuple[str, bool]]:
    """Returns the names of the copies, in the form that `patterns` returns.

    Where a RegexRouter renames copies, only those of topics with a name are known.
    """
    selection, named = topic_selection_of(flow), patterns(flow.spec.topics.include)
    if selection.renames:
        if any(prefixed or name == "*" for name, prefixed in named):
            return [("*", False)]
        return [*dict.fromkeys((selection.target_topic(name), False) for name, _ in named)]
    return [(selection.prefix, True)] if selection.prefix else named


def _disables_offset_syncs(flow: MirrorFlow) -> bool:
    return disables_offset_syncs(flow.spec.connectors.source.config)


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
    names: list[tuple[str, bool]] = []
    for pattern in include:
        prefix = pattern.removesuffix(".*")
        if literal_name(prefix) is None:
            return [("*", False)]
        # An unescaped dot before the star matches any character, so only the text before it is a sure prefix.
        name = re.split(r"(?<!\\)\.", prefix)[0] if prefix != pattern else prefix
        if not name:
            return [("*", False)]
        names.append((name.replace("\\", ""), prefix != pattern))
    return names


def checkpoint_grants(flow: MirrorFlow, side: Side) -> Iterator[Grant]:
    """Yields the ACLs that the checkpoint connector needs on *side*."""
    spec = flow.spec
    moves = spec.groups.sync_offsets
    on_target = side is Side.TARGET
    for name, prefixed in remote_patterns(flow) if on_target else patterns(spec.topics.include):
        access = GROUP_MOVED if on_target and moves else GROUP_READ
        yield Grant(kind="topic", name=name, access=access, prefixed=prefixed)
    if moves or not on_target:
        for name, prefixed in patterns(spec.groups.include):
            access = GROUP_MOVED if on_target else GROUP_READ
            yield Grant(kind="group", name=name, access=access, prefixed=prefixed)
    if moves and not on_target:
        purpose = "groups follow each commit; without it, groups that have moved lately are read every 2 s"
        yield Grant(kind="topic", name=GROUP_OFFSETS_TOPIC, access=READ_LOG, purpose=purpose)
    if not on_target and spec.topics.naming.policy is NamingPolicy.IDENTITY:
        purpose = "after a switchover, groups follow that have yet to read what was copied before"
        name = offset_map_topic(spec.target.alias)
        yield Grant(kind="topic", name=name, access=READ_LOG, purpose=purpose)
    names = internal_names(flow)
    if spec.offset_syncs.location is side:
        other = spec.source.alias if on_target else spec.target.alias
        yield Grant(kind="topic", name=names.offset_syncs_topic(other), access=READ_LOG)
    if on_target:
        yield Grant(kind="topic", name=offset_map_topic(spec.source.alias), access=READ_LOG)
        yield Grant(kind="topic", name=names.checkpoints_topic(spec.source.alias), access=LOG)
        yield from group_grants(flow, ConnectorKind.CHECKPOINT, spec.connectors.checkpoint)


def heartbeat_grants(flow: MirrorFlow, side: Side) -> Iterator[Grant]:
    """Yields the ACLs that the heartbeat connector needs on *side*; none if it does not write there."""
    if side in flow.spec.heartbeats.emit_to:
        topic = internal_names(flow).heartbeats_topic()
        yield Grant(kind="topic", name=topic, access=HEARTBEATS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=True)
    add_json_argument(parser)
    parser.add_argument("--source-principal", metavar="NAME", help="default: from spec.source.authentication")
    parser.add_argument("--target-principal", metavar="NAME", help="default: from spec.target.authentication")


def switchover_grants(pair: LoadedPair, member: str) -> Iterator[Grant]:
    """Yields what `mirrorflow switchover` needs on the cluster *member*, source or target, besides the ACLs of the flow that writes there."""
    (into,) = (flow for flow in pair.flows.values() if flow.spec.target.alias == member)
    (out_of,) = (flow for flow in pair.flows.values() if flow.spec.source.alias == member)
    yield from _fence_grants(pair)
    for name, prefixed in patterns(out_of.spec.topics.include):
        yield Grant(kind="topic", name=name, access=SOURCE_TOPIC, prefixed=prefixed)
    if pair.pair.spec.fence.method is FenceMethod.DENY_ACL:
        yield Grant(kind="topic", name=CANARY_TOPIC, access=HEARTBEATS)
    # It moves the groups itself in the end, both what is read on the source and what is written on the target.
    yield from checkpoint_grants(out_of, Side.SOURCE)
    yield from checkpoint_grants(into, Side.TARGET)
    purpose = "names the transactions that a switchover waits for"
    yield Grant(kind="transactional-id", name="*", access=DESCRIBED, purpose=purpose)


def canary_grants(pair: LoadedPair, member: str) -> Iterator[Grant]:
    """Yields what the probe of *member* needs there: it writes the canary topic as an application would."""
    if (
        pair.pair.spec.fence.method is FenceMethod.DENY_ACL
        and pair.pair.spec.members[member].probe is not None
    ):
        yield Grant(kind="topic", name=CANARY_TOPIC, access=WRITTEN)


def _fence_grants(pair: LoadedPair) -> Iterator[Grant]:
    """Yields what the fence and the journal of *pair* need on each cluster."""
    fence = pair.pair.spec.fence
    if fence.method is FenceMethod.DENY_ACL:
        yield Grant(kind="cluster", name="", access=NAMED_FENCE if fence.except_principals else ACLS_WRITTEN)
    yield Grant(kind="topic", name=SWITCHOVERS_TOPIC, access=LOG)
    lock = switchover_lock(pair.pair.metadata.name)
    yield Grant(kind="transactional-id", name=lock, access=TRANSACTIONAL_ID)


def diverged_grants(pair: LoadedPair, member: str) -> Iterator[Grant]:
    """Yields what `mirrorflow diverged` needs on the cluster *member*, old side or new side, besides the ACLs of the flow that writes there."""
    (flow,) = (flow for flow in pair.flows.values() if flow.spec.target.alias == member)
    yield from _fence_grants(pair)
    topics = patterns(flow.spec.topics.include)
    for name, prefixed in topics:
        yield Grant(kind="topic", name=name, access=SOURCE_TOPIC, prefixed=prefixed)
    for name, prefixed in topics:
        if prefixed or name == "*":
            yield Grant(kind="topic", name=name, access=STORE, prefixed=prefixed)
        else:
            yield Grant(kind="topic", name=kept_prefix(name), access=STORE, prefixed=True)
    yield Grant(kind="topic", name=TAILS_TOPIC, access=LOG)
    yield Grant(kind="transactional-id", name=TAIL_WRITERS, access=TRANSACTIONAL_ID, prefixed=True)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the commands, with a comment for each connector and side."""
    pair = _pair_in(arguments)
    flows = [flow_from(arguments)] if pair is None else [*pair.flows.values()]
    acls = [_flow_grants(arguments, flow) for flow in flows]
    moving = [] if pair is None else _moving_grants(arguments, pair)
    diverged = [] if pair is None else [_diverged_grants(arguments, pair, member) for member in pair.flows]
    if arguments.json:
        documents = [
            {"flow": flow.metadata.name, "acls": [acl for granted in own for acl in _as_json(granted)]}
            for flow, own in zip(flows, acls, strict=True)
        ]
        of_pair = {
            "flows": documents,
            "switchover": [acl for granted in moving for acl in _as_json(granted)],
            "diverged": [acl for granted in diverged for acl in _as_json(granted)],
        }
        print_json(documents[0] if pair is None else {"pair": pair.pair.metadata.name, **of_pair})
        return EXIT_DONE
    for granted in [*(granted for own in acls for granted in own), *moving, *diverged]:
        if granted.grants:
            print(f"# {granted.title}")
        for grant in granted.grants:
            if grant.purpose is not None:
                print(f"# Optional: {grant.purpose}.")
            print(_command(granted.cluster, granted.principal, grant))
    return EXIT_DONE


def _pair_in(arguments: argparse.Namespace) -> LoadedPair | None:
    """Returns the pair in the file of *arguments*; None if it is that of a flow, or stdin. Raises UsageError."""
    if not arguments.file or arguments.file == "-":
        return None
    is_pair = re.search(rf"^kind:\s*{PAIR_KIND}\s*$", read_text(arguments.file), re.MULTILINE)
    return pair_from(arguments) if is_pair else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """The ACLs that a connector needs on one side, or a command on one member of a pair."""

    title: str
    user: dict[str, str]  # what needs them, for JSON
    cluster: ClusterSpec
    principal: str
    grants: tuple[Grant, ...]


def _flow_grants(arguments: argparse.Namespace, flow: MirrorFlow) -> list[_Granted]:
    planned = valid_plan(flow, layout_from(arguments))
    return [
        _connector_grants(arguments, flow, connector.kind, side, cluster)
        for connector in planned.connectors
        for side, cluster in ((Side.SOURCE, flow.spec.source), (Side.TARGET, flow.spec.target))
    ]


def _connector_grants(
    arguments: argparse.Namespace, flow: MirrorFlow, kind: ConnectorKind, side: Side, cluster: ClusterSpec
) -> _Granted:
    match kind:
        case ConnectorKind.SOURCE:
            grants = source_grants(flow) if side is Side.SOURCE else target_grants(flow)
        case ConnectorKind.CHECKPOINT:
            grants = checkpoint_grants(flow, side)
        case ConnectorKind.HEARTBEAT:
            grants = heartbeat_grants(flow, side)
        case ConnectorKind.SCHEMAS:
            grants = iter(())  # it uses the registries alone
    return _Granted(
        title=f"{kind.java_class}, {side.value.lower()} {cluster.alias}",
        user={"connector": kind.java_class, "side": side.value.lower()},
        cluster=cluster,
        principal=_principal(arguments, side, cluster),
        grants=tuple(grants),
    )


def _moving_grants(arguments: argparse.Namespace, pair: LoadedPair) -> list[_Granted]:
    """Returns for each member what the command needs there, and what its probe does."""
    moving: list[_Granted] = []
    for member in pair.flows:
        cluster, probe = _cluster_of(pair, member), pair.pair.spec.members[member].probe
        for title, principal, grants in (
            ("mirrorflow switchover", _principal(arguments, Side.TARGET, cluster), switchover_grants),
            ("probe of mirrorflow switchover", _principal_of(probe), canary_grants),
        ):
            moving.append(
                _Granted(
                    title=f"{title}, {member}",
                    user={"command": "mirrorflow switchover"},
                    cluster=cluster,
                    principal=principal,
                    grants=tuple(dict.fromkeys(grants(pair, member))),
                )
            )
    return moving


def _diverged_grants(arguments: argparse.Namespace, pair: LoadedPair, member: str) -> _Granted:
    cluster = _cluster_of(pair, member)
    return _Granted(
        title=f"mirrorflow diverged, {member}",
        user={"command": "mirrorflow diverged"},
        cluster=cluster,
        principal=_principal(arguments, Side.TARGET, cluster),
        grants=tuple(diverged_grants(pair, member)),
    )


def _cluster_of(pair: LoadedPair, member: str) -> ClusterSpec:
    (cluster,) = (flow.spec.target for flow in pair.flows.values() if flow.spec.target.alias == member)
    return cluster


def _as_json(granted: _Granted) -> list[dict[str, Any]]:
    return [
        {
            **granted.user,
            "cluster": granted.cluster.alias,
            "principal": granted.principal,
            "resourceType": grant.kind,
            "resourceName": grant.name or "kafka-cluster",
            "patternType": "prefixed" if grant.prefixed else "literal",
            "operations": list(grant.access.acl_names),
            "optional": grant.purpose is not None,
        }
        for grant in granted.grants
    ]


def _principal(arguments: argparse.Namespace, side: Side, cluster: ClusterSpec) -> str:
    if given := getattr(arguments, f"{side.value.lower()}_principal"):
        return str(given)
    return _principal_of(cluster.authentication)


def _principal_of(authentication: Authentication | None) -> str:
    if authentication is not None and authentication.username is not None and authentication.username.value:
        return f"User:{authentication.username.value}"
    return PRINCIPAL_DEFAULT


def _command(cluster: ClusterSpec, principal: str, grant: Grant) -> str:
    arguments = ["kafka-acls.sh", "--bootstrap-server", ",".join(cluster.bootstrap_servers), "--add"]
    arguments += ["--allow-principal", principal]
    for operation in grant.access.acl_names:
        arguments += ["--operation", operation]
    arguments += [f"--{grant.kind}"] + ([grant.name] if grant.name else [])
    if grant.prefixed:
        arguments += ["--resource-pattern-type", "prefixed"]
    return shlex.join(arguments)
