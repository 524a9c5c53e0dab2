"""`mirrorflow acls`: prints the minimum ACLs of a flow as kafka-acls commands; makes no network connections.

`grants` and `companion_grants` decide which ACLs those are.
"""

import argparse
import shlex
from dataclasses import dataclass
from typing import Any

from mirrorflow_cli.companion_grants import checkpoint_grants, heartbeat_grants
from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flow_plans import valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.grants import Grant, source_grants, target_grants
from mirrorflow_cli.json_output import add_json_argument, print_json
from mirrorflow_operator.api.spec import ClusterSpec, MirrorFlow, Side
from mirrorflow_operator.plan.plan import ConnectorKind

PRINCIPAL_DEFAULT = "User:mirrorflow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow acls`."""
    add_flow_arguments(parser, addresses=True)
    add_json_argument(parser)
    parser.add_argument("--source-principal", metavar="NAME", help="default: from spec.source.authentication")
    parser.add_argument("--target-principal", metavar="NAME", help="default: from spec.target.authentication")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the commands, with a comment for each connector and side."""
    flow = flow_from(arguments)
    planned = valid_plan(flow, layout_from(arguments))
    found = [
        _granted(arguments, flow, connector.kind, side, cluster)
        for connector in planned.connectors
        for side, cluster in ((Side.SOURCE, flow.spec.source), (Side.TARGET, flow.spec.target))
    ]
    if arguments.json:
        print_json({"flow": planned.flow, "acls": [acl for one in found for acl in _as_json(one)]})
        return EXIT_DONE
    for one in found:
        if one.grants:
            print(f"# {one.kind.value}, {one.side.value.lower()} {one.cluster.alias}")
        for grant in one.grants:
            print(_command(one.cluster, one.principal, grant))
    return EXIT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """The ACLs that a connector needs on one side."""

    kind: ConnectorKind
    side: Side
    cluster: ClusterSpec
    principal: str
    grants: tuple[Grant, ...]


def _granted(
    arguments: argparse.Namespace, flow: MirrorFlow, kind: ConnectorKind, side: Side, cluster: ClusterSpec
) -> _Granted:
    match kind:
        case ConnectorKind.SOURCE:
            grants = source_grants(flow) if side is Side.SOURCE else target_grants(flow)
        case ConnectorKind.CHECKPOINT:
            grants = checkpoint_grants(flow, side)
        case ConnectorKind.HEARTBEAT:
            grants = heartbeat_grants(flow, side)
    principal = getattr(arguments, f"{side.value.lower()}_principal") or _principal(cluster)
    return _Granted(kind=kind, side=side, cluster=cluster, principal=principal, grants=tuple(grants))


def _as_json(granted: _Granted) -> list[dict[str, Any]]:
    return [
        {
            "connector": granted.kind.value,
            "side": granted.side.value.lower(),
            "cluster": granted.cluster.alias,
            "principal": granted.principal,
            "resourceType": grant.kind,
            "resourceName": grant.name or "kafka-cluster",
            "patternType": "prefixed" if grant.prefixed else "literal",
            "operations": list(grant.access.words),
        }
        for grant in granted.grants
    ]


def _principal(cluster: ClusterSpec) -> str:
    authentication = cluster.authentication
    if authentication is not None and authentication.username is not None and authentication.username.value:
        return f"User:{authentication.username.value}"
    return PRINCIPAL_DEFAULT


def _command(cluster: ClusterSpec, principal: str, grant: Grant) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", ",".join(cluster.bootstrap_servers), "--add"]
    words += ["--allow-principal", principal]
    for operation in grant.access.words:
        words += ["--operation", operation]
    words += [f"--{grant.kind}"] + ([grant.name] if grant.name else [])
    if grant.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)
