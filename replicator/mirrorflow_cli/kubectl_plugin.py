"""`kubectl mirrorflow`: the status, partitions, group offsets and logs of MirrorFlows in a cluster.

kubectl runs `kubectl-mirrorflow` from PATH. It logs in as kubectl does, with the user's own rights: `status` reads the
resources, and `partitions` and `offsets` read the HTTP port of a connector's pod by a port-forward, which NetworkPolicies
do not block. `logs` is `kubectl logs`.
"""

import argparse
import http.client
import json
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mirrorflow_cli.command_examples import examples_of
from mirrorflow_cli.errors import EXIT_DONE, EXIT_SIGNAL_BASE, EXIT_USAGE, CommandError, FailedError
from mirrorflow_cli.output import add_json_argument, print_json, print_table
from mirrorflow_kubernetes.credentials import KubernetesLoginError

if TYPE_CHECKING:
    from mirrorflow_kubernetes.client import KubernetesConnection

_PROGRAM: Final = "kubectl mirrorflow"
STATUS_COLUMNS: Final = ("flow", "ready", "reason", "lag", "source", "target", "version")
PARTITION_COLUMNS: Final = ("pod", "partition", "target", "lag", "records/s", "phase", "reason")
OFFSET_COLUMNS: Final = ("group", "partition", "source", "target", "translation", "written", "why")
CONNECTORS: Final = ("source", "checkpoint", "heartbeat", "schemas", "seed", "verify", "archive", "restore")
FLOWS_PATH: Final = "/apis/mirrorflow.io/v1alpha1/namespaces/{}/mirrorflows"
PODS_PATH: Final = "/api/v1/namespaces/{}/pods"
PORT: Final = 8080
LIMIT: Final = 100_000
TIMEOUT_S: Final = 30.0
# Conditions for which True, not False, needs attention.
_TRUE_IS_PROBLEM: Final = frozenset({"Degraded", "Stalled"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the plugin and returns its exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        status = int(parsed.execute(parsed))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has closed it (head, less)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except CommandError as error:
        print(error, file=sys.stderr)
        return error.status
    except KubernetesLoginError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_SIGNAL_BASE + 2
    return status


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Show MirrorFlows of a Kubernetes cluster.",
        epilog=examples_of(_PROGRAM),
        formatter_class=plain,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, purpose: str) -> argparse.ArgumentParser:
        epilog = examples_of(f"{_PROGRAM} {name}")
        return commands.add_parser(name, help=purpose, epilog=epilog, formatter_class=plain)

    status = add("status", "show flows and what needs attention")
    status.add_argument("flow", metavar="FLOW", nargs="?", help="only this flow (default: all)")
    partitions = add("partitions", "show each partition of a flow and its lag")
    offsets = add("offsets", "show consumer group offsets on both clusters")
    offsets.add_argument("--group", metavar="NAME", help="only this group")
    logs = add("logs", "show the log of a connector or a Spark job")
    for command, execute in (
        (status, _status),
        (partitions, _partitions),
        (offsets, _offsets),
        (logs, _logs),
    ):
        if command is not status:
            command.add_argument("flow", metavar="FLOW")
        command.add_argument("-n", "--namespace", metavar="NAME", help="default: that of kubectl")
        command.add_argument("--context", metavar="NAME", help="default: that of kubectl")
        command.set_defaults(execute=execute)
    for command in (status, partitions, offsets):
        add_json_argument(command)
    logs.add_argument("connector", metavar="CONNECTOR", nargs="?", default="source", choices=CONNECTORS)
    logs.add_argument("-f", "--follow", action="store_true", help="continue with new lines")
    return parser


# -- commands


def _status(arguments: argparse.Namespace) -> int:
    with _connected(arguments) as cluster:
        path = FLOWS_PATH.format(cluster.namespace) + ("" if arguments.flow is None else f"/{arguments.flow}")
        content = _get(cluster, path)
    flows = content.get("items", [content])
    if arguments.json:
        print_json({"flows": [{"name": _name(flow), "status": flow.get("status", {})} for flow in flows]})
        return EXIT_DONE
    if not flows:
        print("There are no MirrorFlows in this namespace.")
        return EXIT_DONE
    print_table(STATUS_COLUMNS, [_flow_row(flow) for flow in flows])
    for flow in flows:
        for sentence in problems(flow.get("status", {})):
            print(f"{_name(flow)}: {sentence}")
    return EXIT_DONE


def _partitions(arguments: argparse.Namespace) -> int:
    with _connected(arguments) as cluster:
        rows = [
            {"pod": _name(pod), **row}
            for pod in _pods(cluster, arguments.flow, "source")
            for row in _read(cluster, pod, f"/progress/partitions?limit={LIMIT}")["partitions"]
        ]
    if arguments.json:
        print_json({"partitions": rows})
        return EXIT_DONE
    print_table(PARTITION_COLUMNS, [_partition_row(row) for row in rows])
    for row in rows:
        if row.get("message"):
            print(f"{row['topic']}-{row['partition']}: {row['message']}")
    return EXIT_DONE


def _offsets(arguments: argparse.Namespace) -> int:
    group = f"&group={quote(arguments.group, safe='')}" if arguments.group else ""
    with _connected(arguments) as cluster:
        rows = [
            row
            for pod in _pods(cluster, arguments.flow, "checkpoint", "source")
            for row in _read(cluster, pod, f"/offsets?limit={LIMIT}{group}")["offsets"]
        ]
    if arguments.json:
        print_json({"offsets": rows})
        return EXIT_DONE
    print_table(OFFSET_COLUMNS, [_offset_row(row) for row in rows])
    return EXIT_DONE


def _logs(arguments: argparse.Namespace) -> int:
    of_job = arguments.connector in {"seed", "verify", "archive", "restore"}
    labels = ("run-of", "run") if of_job else ("flow", "connector")
    values = (arguments.flow, arguments.connector)
    selector = ",".join(f"mirrorflow.io/{label}={value}" for label, value in zip(labels, values, strict=True))
    follow = ["--follow"] if arguments.follow else []
    options = {"namespace": arguments.namespace, "context": arguments.context}
    given = [f"--{name}={value}" for name, value in options.items() if value]
    command = ["kubectl", "logs", f"--selector={selector}", "--prefix", "--tail=-1", *follow, *given]
    try:
        return subprocess.run(command, check=False).returncode  # noqa: S603  no shell
    except FileNotFoundError:
        raise FailedError("kubectl is not on PATH.") from None


# -- rows


def problems(status: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence for each condition of *status* that needs attention; each sentence once."""
    printed: set[str] = set()
    for condition in status.get("conditions", ()):
        wrong = "True" if condition["type"] in _TRUE_IS_PROBLEM else "False"
        message = condition.get("message", "")
        is_quiet = (
            condition["type"] in {"Reconciling", "Seeded", "Verified", "Restored"}
            and condition["status"] == "False"
        )
        if condition["status"] == wrong and not is_quiet and message not in printed:
            printed.add(message)
            yield f"{condition['type']} is {condition['status']} ({condition['reason']}): {message}"


def _flow_row(resource: dict[str, Any]) -> tuple[str, ...]:
    spec, status = resource["spec"], resource.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    return (
        _name(resource),
        ready.get("status", "Unknown"),
        ready.get("reason", "-"),
        status.get("lag", "-"),
        spec["source"]["alias"],
        spec["target"]["alias"],
        status.get("version", "-"),
    )


def _partition_row(row: dict[str, Any]) -> tuple[str, ...]:
    lag = row.get("lagRecords")
    return (
        str(row["pod"]),
        f"{row['topic']}-{row['partition']}",
        str(row.get("targetTopic", "")),
        "?" if lag is None else f"{lag:,}",
        f"{row.get('recordsPerSecond', 0):,.0f}",
        str(row.get("phase", "")),
        str(row.get("reason") or ""),
    )


def _offset_row(row: dict[str, Any]) -> tuple[str, ...]:
    target = row.get("targetOffset")
    return (
        str(row["group"]),
        f"{row['topic']}-{row['partition']}",
        str(row["sourceOffset"]),
        "-" if target is None else str(target),
        str(row["translation"]),
        "yes" if row["written"] else "no",
        str(row.get("why") or ""),
    )


def _name(resource: dict[str, Any]) -> str:
    return str(resource["metadata"]["name"])


# -- the cluster


class _ForwardedConnection(http.client.HTTPConnection):
    """HTTP over a port-forward."""

    def __init__(self, forwarded: Any, *, is_secure: bool) -> None:
        super().__init__("127.0.0.1", PORT)
        self._forwarded, self._is_secure = forwarded, is_secure

    def connect(self) -> None:
        self.sock = self._forwarded.socket(PORT)
        self.sock.settimeout(TIMEOUT_S)
        if self._is_secure:
            # The API server has authenticated the other end; the certificate has the name of a Service.
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator["KubernetesConnection"]:
    # Half a second, which --help and logs do not need.
    from mirrorflow_kubernetes.client import connect  # noqa: PLC0415

    # Retries are no news; the last failure is an error of the command.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    connection = connect(arguments.context)
    with connection.api:
        yield replace(connection, namespace=arguments.namespace) if arguments.namespace else connection


def _get(
    cluster: "KubernetesConnection", path: str, params: Mapping[str, str] | None = None
) -> dict[str, Any]:
    from mirrorflow_kubernetes.client import REQUEST_ERRORS  # noqa: PLC0415  as in _connected

    try:
        content: dict[str, Any] = cluster.get(path, params or {}, timeout_s=TIMEOUT_S)
    except REQUEST_ERRORS as error:
        raise FailedError(f"The API server does not answer {path}: {_cause(error)}.") from None
    return content


def _cause(error: Exception) -> str:
    """Returns the sentence of the API server, if it has sent one."""
    try:
        return str(json.loads(getattr(error, "body", None) or "")["message"]).rstrip(".")
    except (ValueError, LookupError, TypeError):
        return str(getattr(error, "reason", None) or error).rstrip(".")


def _pods(cluster: "KubernetesConnection", flow: str, *connectors: str) -> list[dict[str, Any]]:
    """Returns the ready pods of the first of *connectors* that has any; a connector may run in the pod of another."""
    for connector in connectors:
        selector = f"mirrorflow.io/flow={flow},mirrorflow.io/connector={connector}"
        listed = _get(cluster, PODS_PATH.format(cluster.namespace), {"labelSelector": selector})
        pods = [pod for pod in listed["items"] if _is_ready(pod)]
        if pods:
            return pods
    raise FailedError(
        f"Flow {flow} has no ready pod of its {connectors[0]} connector; `kubectl mirrorflow status {flow}` has the reason."
    )


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def _read(cluster: "KubernetesConnection", pod: dict[str, Any], path: str) -> dict[str, Any]:
    from mirrorflow_kubernetes.client import REQUEST_ERRORS  # noqa: PLC0415  as in _connected

    is_secure = pod["metadata"].get("annotations", {}).get("mirrorflow.io/http-scheme") == "https"
    try:
        with cluster.forward(_name(pod), PORT) as forwarded:
            connection = _ForwardedConnection(forwarded, is_secure=is_secure)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                if response.status != http.client.OK:
                    raise FailedError(f"Pod {_name(pod)} answers {path} with status {response.status}.")
                content: dict[str, Any] = json.load(response)
            except (http.client.HTTPException, OSError, ValueError) as error:
                cause = forwarded.error(PORT) or str(error) or type(error).__name__
                raise FailedError(f"Pod {_name(pod)} does not answer at {path}: {cause}.") from None
            finally:
                connection.close()
    except REQUEST_ERRORS as error:
        raise FailedError(f"Pod {_name(pod)} cannot be reached by a port-forward: {_cause(error)}.") from None
    return content


if __name__ == "__main__":
    sys.exit(main())
