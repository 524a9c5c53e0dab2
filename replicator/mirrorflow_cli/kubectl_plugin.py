"""`kubectl mirrorflow`: the status, partitions, group offsets and logs of MirrorFlows in a cluster.

kubectl runs `kubectl-mirrorflow` from PATH. All access to the cluster is by kubectl itself, with the user's own
rights: `status` reads the resources, `logs` is `kubectl logs`, and the other two read the HTTP port of a connector's
pod by `kubectl port-forward`, which NetworkPolicies do not block.
"""

import argparse
import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from mirrorflow_cli.command_examples import examples_of
from mirrorflow_cli.errors import EXIT_DONE, EXIT_SIGNAL_BASE, CommandError, FailedError
from mirrorflow_cli.output import add_json_argument, print_json, print_table

_PROGRAM: Final = "kubectl mirrorflow"
STATUS_COLUMNS: Final = ("flow", "ready", "reason", "lag", "source", "target", "version")
PARTITION_COLUMNS: Final = ("pod", "partition", "target", "lag", "records/s", "phase", "reason")
OFFSET_COLUMNS: Final = ("group", "partition", "source", "target", "translation", "written", "why")
CONNECTORS: Final = ("source", "checkpoint", "heartbeat", "seed", "verify")
PORT: Final = 8080
LIMIT: Final = 100_000
TIMEOUT_S: Final = 30.0
# Conditions for which True, not False, needs attention.
_TRUE_IS_PROBLEM: Final = frozenset({"Degraded", "Stalled"})
_FORWARDED: Final = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]+) ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the plugin and returns its exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.execute(parsed))
    except CommandError as error:
        print(error, file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return EXIT_SIGNAL_BASE + 2


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
    name = [] if arguments.flow is None else [arguments.flow]
    found = _get(arguments, "mirrorflows.mirrorflow.io", *name)
    flows = found.get("items", [found])
    if arguments.json:
        print_json({"flows": [{"name": _name(one), "status": one.get("status", {})} for one in flows]})
        return EXIT_DONE
    if not flows:
        print("There are no MirrorFlows in this namespace.")
        return EXIT_DONE
    print_table(STATUS_COLUMNS, [_flow_row(one) for one in flows])
    for one in flows:
        for sentence in problems(one.get("status", {})):
            print(f"{_name(one)}: {sentence}")
    return EXIT_DONE


def _partitions(arguments: argparse.Namespace) -> int:
    found = [
        {"pod": _name(pod), **row}
        for pod in _pods(arguments, "source")
        for row in _read(arguments, pod, f"/progress/partitions?limit={LIMIT}")["partitions"]
    ]
    if arguments.json:
        print_json({"partitions": found})
        return EXIT_DONE
    print_table(PARTITION_COLUMNS, [_partition_row(one) for one in found])
    for one in found:
        if one.get("message"):
            print(f"{one['topic']}-{one['partition']}: {one['message']}")
    return EXIT_DONE


def _offsets(arguments: argparse.Namespace) -> int:
    group = f"&group={quote(arguments.group, safe='')}" if arguments.group else ""
    found = [
        row
        for pod in _pods(arguments, "checkpoint", "source")
        for row in _read(arguments, pod, f"/offsets?limit={LIMIT}{group}")["offsets"]
    ]
    if arguments.json:
        print_json({"offsets": found})
        return EXIT_DONE
    print_table(OFFSET_COLUMNS, [_offset_row(one) for one in found])
    return EXIT_DONE


def _logs(arguments: argparse.Namespace) -> int:
    of_job = arguments.connector in {"seed", "verify"}
    labels = ("run-of", "run") if of_job else ("flow", "connector")
    values = (arguments.flow, arguments.connector)
    selector = ",".join(f"mirrorflow.io/{one}={value}" for one, value in zip(labels, values, strict=True))
    follow = ["--follow"] if arguments.follow else []
    command = _kubectl(arguments, "logs", f"--selector={selector}", "--prefix", "--tail=-1", *follow)
    return _run(command, is_captured=False).returncode


# -- rows


def problems(status: dict[str, Any]) -> Iterator[str]:
    """Yields a sentence for each condition of *status* that needs attention; each sentence once."""
    printed: set[str] = set()
    for one in status.get("conditions", ()):
        wrong = "True" if one["type"] in _TRUE_IS_PROBLEM else "False"
        message = one.get("message", "")
        is_quiet = one["type"] in {"Reconciling", "Seeded", "Verified"} and one["status"] == "False"
        if one["status"] == wrong and not is_quiet and message not in printed:
            printed.add(message)
            yield f"{one['type']} is {one['status']} ({one['reason']}): {message}"


def _flow_row(resource: dict[str, Any]) -> tuple[str, ...]:
    spec, status = resource["spec"], resource.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", ())}
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


def _pods(arguments: argparse.Namespace, *connectors: str) -> list[dict[str, Any]]:
    """Returns the ready pods of the first of *connectors* that has any; a connector may run in the pod of another."""
    for connector in connectors:
        selector = f"mirrorflow.io/flow={arguments.flow},mirrorflow.io/connector={connector}"
        pods = [one for one in _get(arguments, "pods", f"--selector={selector}")["items"] if _is_ready(one)]
        if pods:
            return pods
    raise FailedError(
        f"Flow {arguments.flow} has no ready pod of its {connectors[0]} connector; `kubectl mirrorflow status "
        f"{arguments.flow}` has the reason."
    )


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def _get(arguments: argparse.Namespace, *what: str) -> dict[str, Any]:
    done = _run(_kubectl(arguments, "get", *what, "--output=json"))
    if done.returncode:
        raise FailedError(done.stderr.strip() or f"kubectl exited with status {done.returncode}.")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(command: Sequence[str], *, is_captured: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=is_captured, text=True, check=False)  # noqa: S603  no shell
    except FileNotFoundError:
        raise FailedError("kubectl is not on PATH.") from None


def _kubectl(arguments: argparse.Namespace, *words: str) -> list[str]:
    options = {"namespace": arguments.namespace, "context": arguments.context}
    return ["kubectl", *words, *(f"--{name}={value}" for name, value in options.items() if value)]


def _read(arguments: argparse.Namespace, pod: dict[str, Any], path: str) -> dict[str, Any]:
    is_secure = pod["metadata"].get("annotations", {}).get("mirrorflow.io/http-scheme") == "https"
    with _forwarded(arguments, pod) as port:
        url = f"{'https' if is_secure else 'http'}://127.0.0.1:{port}{path}"
        # The API server has authenticated the other end; the certificate has the name of a Service.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as response:  # noqa: S310  http or https only
                found: dict[str, Any] = json.load(response)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise FailedError(f"Pod {_name(pod)} does not answer at {path}: {error}.") from None
    return found


@contextmanager
def _forwarded(arguments: argparse.Namespace, pod: dict[str, Any]) -> Iterator[int]:
    """Yields a local port that leads to the pod while the context lasts."""
    command = _kubectl(arguments, "port-forward", f"pod/{_name(pod)}", f":{PORT}", "--address=127.0.0.1")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:  # noqa: S603  a list, no shell
        try:
            line = "" if child.stdout is None else child.stdout.readline()
            found = _FORWARDED.search(line)
            if found is None:
                child.terminate()
                why = "" if child.stderr is None else child.stderr.read().strip()
                raise FailedError(
                    f"Pod {_name(pod)} cannot be reached by kubectl port-forward: {why or line}"
                )
            yield int(found[1])
        finally:
            child.terminate()


if __name__ == "__main__":
    sys.exit(main())
