"""`mirrorflow acls`: the least ACLs of a flow, as kafka-acls commands; contacts nothing.

Which they are is `grants`' and `companion_grants`'.
"""

import argparse
import shlex

from mirrorflow_cli.companion_grants import checkpoint_grants, heartbeat_grants
from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flows import add_flow_arguments, flow_from
from mirrorflow_cli.grants import Grant, source_grants, target_grants
from mirrorflow_operator.api.cluster import Cluster
from mirrorflow_operator.api.groups import Side
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.plan import ConnectorKind, plan

PRINCIPAL_DEFAULT = "User:mirrorflow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow acls`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--source-principal", metavar="NAME", help="default: from spec.source.authentication")
    parser.add_argument("--target-principal", metavar="NAME", help="default: from spec.target.authentication")


def execute(arguments: argparse.Namespace) -> int:
    """Print, with a comment for each connector and side."""
    flow = flow_from(arguments)
    planned = plan(flow, SecretLayout(secrets="", config_maps=""))
    for connector in planned.connectors:
        for side, cluster in ((Side.SOURCE, flow.spec.source), (Side.TARGET, flow.spec.target)):
            _print(arguments, flow, connector.kind, side, cluster)
    return EXIT_DONE


def _print(
    arguments: argparse.Namespace, flow: MirrorFlow, kind: ConnectorKind, side: Side, cluster: Cluster
) -> None:
    match kind:
        case ConnectorKind.SOURCE:
            grants = source_grants(flow) if side is Side.SOURCE else target_grants(flow)
        case ConnectorKind.CHECKPOINT:
            grants = checkpoint_grants(flow, side)
        case ConnectorKind.HEARTBEAT:
            grants = heartbeat_grants(flow, side)
    word = side.value.lower()
    principal = getattr(arguments, f"{word}_principal") or _principal(cluster)
    commands = [_command(cluster, principal, grant) for grant in grants]
    if commands:
        print(f"# {kind.value}, {word} {cluster.alias}", *commands, sep="\n")


def _principal(cluster: Cluster) -> str:
    authentication = cluster.authentication
    if authentication is not None and authentication.username is not None and authentication.username.value:
        return f"User:{authentication.username.value}"
    return PRINCIPAL_DEFAULT


def _command(cluster: Cluster, principal: str, grant: Grant) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", ",".join(cluster.bootstrap_servers), "--add"]
    words += ["--allow-principal", principal]
    for operation in grant.operations:
        words += ["--operation", operation]
    words += [f"--{grant.kind}"] + ([grant.name] if grant.name else [])
    if grant.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)
