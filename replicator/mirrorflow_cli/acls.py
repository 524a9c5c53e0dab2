"""`mirrorflow acls`: the least ACLs of a flow, as kafka-acls commands; contacts nothing.

Which they are is `grants`'.
"""

import argparse
import shlex

from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flows import add_flow_arguments, flow_from
from mirrorflow_cli.grants import Grant, source_grants, target_grants
from mirrorflow_operator.api.cluster import Cluster

PRINCIPAL_DEFAULT = "User:mirrorflow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow acls`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--source-principal", metavar="NAME", help="default: from spec.source.authentication")
    parser.add_argument("--target-principal", metavar="NAME", help="default: from spec.target.authentication")


def execute(arguments: argparse.Namespace) -> int:
    """Print, with a comment for each connector and side."""
    flow = flow_from(arguments)
    source, target = flow.spec.source, flow.spec.target
    for connector, side, cluster, grants in (
        ("MirrorSourceConnector", "source", source, list(source_grants(flow))),
        ("MirrorSourceConnector", "target", target, list(target_grants(flow))),
    ):
        principal = getattr(arguments, f"{side}_principal") or _principal(cluster)
        print(f"# {connector}, {side} {cluster.alias}")
        for grant in grants:
            print(_command(cluster, principal, grant))
    print("# MirrorCheckpointConnector and MirrorHeartbeatConnector come with the next release.")
    return EXIT_DONE


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
