"""`python -m benchmarks operator`: measures what a thousand MirrorFlows cost the operator and a real API server.

        python -m benchmarks operator [--flows 1000] [--seconds 120]     # writes benchmarks/OPERATOR.md
        python -m benchmarks operator --polling			  # 3,000 stubs and only the poller
        python -m benchmarks operator --quiescence		       # 200 flows without changes for five minutes: no writes

etcd, API server and controllers are real. No kubelet runs: pods are marked as Running, and stub connectors serve their
addresses. Requests and writes are read from the API server's audit log.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import operator_facts
from benchmarks.polling import polling
from benchmarks.results import Result, document
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import Child, cpu_s, start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import KubectlError
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import listed, mark_pods_running
from tests.harness.kubernetes.stub_connectors import addresses, stub_command

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "benchmarks"
USER = "operator"
PER_NAMESPACE = 100
CONNECTORS = 3  # of each flow: source, checkpoint, heartbeat
BLOCK = 77  # of 127.0.0.0/8
QUIET_S = 5.0
SETTLE_WAIT_S = 1_800.0
READY_WAIT_S = 300.0  # a flow becomes Ready after a minute
CONTROLLER_CALLS_PER_S = 1_000  # with Kubernetes' default of 20, 3,000 Deployments would take ten minutes, which are not measured here
FLOWS = "/apis/mirrorflow.io/v1alpha1"
TITLE = "What the operator costs"


@dataclass(kw_only=True)
class Stand:
    """A server with *flows* MirrorFlows, and the measurements on it."""

    server: ApiServer
    requests: Requests
    folder: Path
    flows: int
    result: Result
    read: int = field(default=0)  # bytes of the audit log

    def operator(self, name: str) -> OperatorProcess:
        kubeconfig = self.server.user(USER, groups=["system:masters"]).kubeconfig
        environment = {"MIRRORFLOW_LEASE_S": "15", "MIRRORFLOW_LOG_LEVEL": "WARNING"}
        return OperatorProcess(kubeconfig=kubeconfig, folder=self.folder, name=name, environment=environment)

    def create_flows(self) -> None:
        for first in range(0, self.flows, PER_NAMESPACE):
            namespace = f"team-{first // PER_NAMESPACE}"
            self.requests("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            for number in range(first, min(first + PER_NAMESPACE, self.flows)):
                response = self.requests("POST", f"{FLOWS}/namespaces/{namespace}/mirrorflows", _flow(number))
                assert response.status == 201, response.message

    def settled(self, operator: OperatorProcess, since: int) -> None:
        """Waits until every flow's status is for its current spec, and nothing has been written for a while."""

        def quiet() -> bool:
            operator.child.must_run()
            return operator.idle and all(map(_is_observed, self.all_flows()))

        wait_until("every flow is reconciled", quiet, timeout_s=SETTLE_WAIT_S, poll_s=0.5)
        self.silent(since)

    def silent(self, since: int) -> None:
        seen, changed_s = -1, 0.0

        def still() -> bool:
            nonlocal seen, changed_s
            writes = sum(request.is_write for request in self.server.audit_log_of(USER, since))
            if writes != seen:
                seen, changed_s = writes, time.monotonic()
            return time.monotonic() - changed_s >= QUIET_S

        wait_until("nothing is written", still, timeout_s=SETTLE_WAIT_S, poll_s=1.0)

    def all_flows(self) -> Iterator[Any]:
        return listed(self.requests, f"{FLOWS}/mirrorflows")

    def calls(self, since: int) -> Counter[str]:
        return Counter(
            f"{request.kind.verb} {request.kind.resource}"
            for request in self.server.audit_log_of(USER, since)
        )

    def writes(self, since: int) -> int:
        return sum(request.is_write for request in self.server.audit_log_of(USER, since))

    @contextmanager
    def measured(self, operator: OperatorProcess, row: str) -> Iterator[None]:
        """Adds the figures of the block to the result: seconds, CPU, calls and writes for each flow."""
        since, began = self.server.log_size(), time.monotonic()
        cpu = cpu_s(operator.child.pid)
        asked = operator.metric("polls_total")
        yield
        seconds, used = time.monotonic() - began, cpu_s(operator.child.pid) - cpu
        writes = self.writes(since)
        self.result.add(
            row,
            seconds=seconds,
            cpu_s=used,
            core_percent=100 * used / seconds,
            peak_memory_MiB=peak_bytes(operator.child) / 2**20,
            calls_per_flow=self.calls(since).total() / self.flows,
            writes=writes,
            writes_per_flow=writes / self.flows,
            polls=operator.metric("polls_total") - asked,
        )


def _is_observed(flow: Any) -> bool:
    return bool(flow.get("status", {}).get("observedGeneration") == flow["metadata"]["generation"])


def _is_ready(flow: Any) -> bool:
    conditions = flow.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _flow(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": f"flow-{number:04}"},
        "spec": {
            "source": {
                "alias": "east",
                "bootstrapServers": [f"kafka-{number}.east:9092"],
                "authentication": {
                    "type": "ScramSha512",
                    "username": {"value": "mirror"},
                    "password": {"secretName": "east-mirror", "key": "password"},
                },
            },
            "target": {"alias": "west", "bootstrapServers": [f"kafka-{number}.west:9092"]},
            "topics": {"include": ["orders.*", "payments"]},
        },
    }


def peak_bytes(child: Child) -> int:
    """Returns the largest memory that the process has used (VmHWM)."""
    for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _from_nothing(stand: Stand) -> None:
    result = stand.result
    began, since = time.monotonic(), stand.server.log_size()
    with stand.operator("first") as operator:
        stand.settled(operator, since)
        seconds = time.monotonic() - began - QUIET_S
        calls, writes = stand.calls(since), stand.writes(since)
        result.add(
            "from nothing",
            seconds=seconds,
            cpu_s=cpu_s(operator.child.pid),
            peak_memory_MiB=peak_bytes(operator.child) / 2**20,
            calls_per_flow=calls.total() / stand.flows,
            writes=writes,
            writes_per_flow=writes / stand.flows,
        )
        top = ", ".join(f"{what} {count / stand.flows:.2f}" for what, count in calls.most_common(8))
        result.notes.append(f"From nothing, calls a flow: {top}.")
        operator.child.stop()
    result.demand(
        "API writes a flow, from nothing", "writes_per_flow", "from nothing", sense="<=", limit=12, unit=""
    )
    result.demand(
        "peak memory, from nothing", "peak_memory_MiB", "from nothing", sense="<=", limit=256, unit="MiB"
    )


def _again(stand: Stand, operator: OperatorProcess, since: int, began: float) -> None:
    stand.settled(operator, since)
    calls = stand.calls(since)
    stand.result.add(
        "second pass, a new process",
        seconds=time.monotonic() - began - QUIET_S,
        cpu_s=cpu_s(operator.child.pid),
        peak_memory_MiB=peak_bytes(operator.child) / 2**20,
        calls_per_flow=calls.total() / stand.flows,
        writes=stand.writes(since),
    )
    stand.result.demand(
        "writes of a second pass", "writes", "second pass, a new process", sense="<=", limit=0, unit=""
    )


@contextmanager
def _connectors(stand: Stand) -> Iterator[Child]:
    """Starts a stub for each pod, and marks every pod as Running."""
    count = stand.flows * CONNECTORS
    log = stand.folder / "stubs.log"
    stubs = start("stubs", stub_command(HTTP_PORT, BLOCK, count), log=log)
    try:
        wait_until("stubs listen", lambda: "ready" in log.read_text(), timeout_s=60)

        def all_there() -> bool:
            return sum(1 for _ in listed(stand.requests, "/api/v1/pods")) >= count

        wait_until("every pod exists", all_there, timeout_s=SETTLE_WAIT_S, poll_s=2.0)
        mark_pods_running(stand.requests, addresses(BLOCK, count))
        yield stubs
    finally:
        stubs.kill()


def _settle_ready(stand: Stand, operator: OperatorProcess, since: int) -> None:
    def ready() -> bool:
        operator.child.must_run()
        return all(map(_is_ready, stand.all_flows()))

    wait_until("every flow is Ready", ready, timeout_s=SETTLE_WAIT_S, poll_s=5.0)
    stand.silent(since)


def scale(stand: Stand, seconds: float) -> None:
    """Measures one installation from its first start to polling with traffic."""
    stand.create_flows()
    _from_nothing(stand)
    since, began = stand.server.log_size(), time.monotonic()
    with stand.operator("second") as operator:
        operator.wait_until_leading(SETTLE_WAIT_S)
        _again(stand, operator, since, began)
        with _connectors(stand) as stubs:
            with stand.measured(operator, "every pod is Ready, flows become so"):
                _settle_ready(stand, operator, since)
            polled = f"polling {stand.flows * CONNECTORS:,} pods, no traffic"
            with stand.measured(operator, polled):
                time.sleep(seconds)
            stubs.process.send_signal(signal.SIGUSR1)
            busy = "traffic, lag in another bucket with each poll"
            with stand.measured(operator, busy):
                time.sleep(seconds)
            _demand_rest(stand, operator, polled, busy, seconds)


def _demand_rest(stand: Stand, operator: OperatorProcess, polled: str, busy: str, seconds: float) -> None:
    result = stand.result
    result.demand("polling, of one core", "core_percent", polled, sense="<=", limit=10, unit="%")
    result.demand("writes without traffic", "writes", polled, sense="<=", limit=0, unit="")
    result.add(
        busy, status_writes_per_flow_and_minute=(result.middle(busy, "writes_per_flow") or 0) / seconds * 60
    )
    result.demand(
        "status writes a minute and flow",
        "status_writes_per_flow_and_minute",
        busy,
        sense="<=",
        limit=1,
        unit="",
    )
    result.add(busy, peak_memory_at_the_end_MiB=peak_bytes(operator.child) / 2**20)
    result.demand(
        "peak memory at the end", "peak_memory_at_the_end_MiB", busy, sense="<=", limit=256, unit="MiB"
    )


def quiescence(stand: Stand, seconds: float) -> None:
    """Measures Ready flows without changes: a write in this time would repeat forever."""
    stand.create_flows()
    with stand.operator("only") as operator:
        stand.settled(operator, 0)
        with _connectors(stand):
            _settle_ready(stand, operator, 0)
            row = f"{stand.flows} Ready flows, no changes"
            with stand.measured(operator, row):
                time.sleep(seconds)
    stand.result.demand("writes but Leases", "writes", row, sense="<=", limit=0, unit="")


def main(arguments: list[str]) -> int:
    """Returns exit status 1 if a demand is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = _options(arguments)
    CACHE.mkdir(parents=True, exist_ok=True)
    heading = operator_facts(" ".join(["python -m benchmarks operator", *arguments]))
    results = []
    if not options.quiescence:
        setting = "As many stub connectors as a thousand flows have, each polled every half minute."
        results.append(Result(name="polling", title="polling connectors", setting=setting))
        polling(results[0], options.seconds or 120)
    if not options.polling:
        results.append(_at_a_server(options))
    text = document(results, heading=heading, title=TITLE)
    is_whole = not (options.flows or options.seconds or options.quiescence or options.polling)
    target = HERE / "OPERATOR.md" if is_whole else CACHE / f"operator-{results[-1].name}.md"
    target.write_text(text)
    print(f"{text}\n{target}")
    return 0 if all(demand.is_met for result in results for demand in result.demands) else 1


def _at_a_server(options: argparse.Namespace) -> Result:
    flows = options.flows or (200 if options.quiescence else 1_000)
    seconds = options.seconds or (300 if options.quiescence else 120)
    setting = f"{flows:,} MirrorFlows, each with {CONNECTORS} connectors; a real API server, etcd and controllers, no kubelet."
    name = "quiescence" if options.quiescence else "scale"
    result = Result(name=name, title=TITLE.lower(), setting=setting)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        place = Path(folder)
        with ApiServer(folder=place, controller_calls_per_s=CONTROLLER_CALLS_PER_S) as server:
            server.kubectl(
                "apply", "--server-side", f"--filename={HERE.parent / 'crds' / 'mirrorflows.yaml'}"
            )
            wait_until("the API server serves MirrorFlows", lambda: _knows_flows(server))
            requests = Requests(server.kubectl.kubeconfig)
            stand = Stand(server=server, requests=requests, folder=place, flows=flows, result=result)
            (quiescence if options.quiescence else scale)(stand, seconds)
    return result


def _knows_flows(server: ApiServer) -> bool:
    try:
        server.kubectl("get", "mirrorflows")
    except KubectlError:
        return False
    return True


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks operator", description=TITLE)
    parser.add_argument("--flows", type=int, default=0, help="1,000; 200 with --quiescence")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="of each measurement: 120; 300 with --quiescence"
    )
    parser.add_argument(
        "--quiescence", action="store_true", help="only check that unchanged flows cause no writes"
    )
    parser.add_argument("--polling", action="store_true", help="only measure polling of 3,000 connectors")
    return parser.parse_args(arguments)
