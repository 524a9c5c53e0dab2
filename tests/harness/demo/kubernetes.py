"""`make demo-kubernetes` installs the operator on a real Kubernetes, runs a flow between secured clusters and deletes a
pod.

With `--ui`, it then opens the console.

The exit status is 0 if both sides are equal at the end, 1 if not or after an error, and 130 after Ctrl-C. In every case
it ends its processes and removes its files and network interfaces, except builds in .cache. It needs root.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import FrameType

import yaml

from tests.harness.demo.comparison import as_text, compare, verdict
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kubernetes.stage import FLOWS, Stage, require_stage

NAME, NETWORK = "mirrorflow-demo", 244  # differs from that of `make cluster`
FLOW = "east-to-west"
TOPIC = "orders"
PARTITIONS = 3
BACKLOG = 20_000  # records before the flow starts
RATE = 500  # records per second
WATCH_S = 7.0  # before and after the deletion of the pod
WAIT_S = 180.0  # for a busy machine
EXIT_SIGNAL_BASE = 128
CONDITIONS = (
    "Ready",
    "Accepted",
    "SourceReachable",
    "TargetReachable",
    "TopicsSelected",
    "Replicating",
    "CheckpointsFresh",
)


def main() -> int:
    """Runs the demo until it ends, and returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    try:
        require_stage()
        with tempfile.TemporaryDirectory(prefix="mf-demo-") as folder:
            stage = Stage(folder=Path(folder) / "node", name=NAME, network=NETWORK, values={"pollSeconds": 2})
            try:
                return _run_demo(stage)
            finally:
                stage.close()
    except KeyboardInterrupt:
        _print_text("Stopped by Ctrl-C. The cluster, both Kafka clusters and their files are gone.")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1


def _run_demo(stage: Stage) -> int:
    begin = time.monotonic()
    _print_text(
        "Starting Kubernetes on this machine: etcd, API server, controllers, scheduler, kubelet, containerd, DNS."
    )
    stage.start_cluster()
    _print_text(
        f"It is up after {time.monotonic() - begin:.0f} s. Starting two Kafka clusters, east and west. Both require"
        " TLS and a password (SCRAM-SHA-512); their CA certificates and passwords become Secrets."
    )
    stage.start_kafka()
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    _print_command("kubectl get secrets", stage.kubectl("get", "secrets"))
    _print_text("Building the images from the Dockerfile, if needed, and installing the chart:")
    stage.release.load_images()
    stage.release.install()
    _print_command(
        "helm install mirrorflow charts/mirrorflow --set watch.cluster=true --wait",
        stage.release.kubectl("get", "pods"),
    )
    _print_text(
        "This is the flow. It names Secrets and contains no password; the operator has no right to read Secrets:"
    )
    resource = stage.flow(FLOW, [TOPIC])
    _print_command("kubectl apply -f flow.yaml", yaml.safe_dump(resource, sort_keys=False))
    with SteadyProducer(
        bootstrap=stage.east.internal_bootstrap, topics=(TOPIC,), backlog=BACKLOG, rate=RATE
    ) as producer:
        applied = time.monotonic()
        stage.apply(resource)
        stage.wait_for(FLOW, "Ready", timeout_s=WAIT_S)
        _print_text(
            f"{time.monotonic() - applied:.0f} s later it is Ready, so records are copied: a producer has written"
            f" {BACKLOG:,} to east and continues with {RATE:,} a second. Each connector has one pod:"
        )
        _print_flow_and_pods(stage)
        deleted = _delete_a_pod(stage, producer)
    _print_text(
        f"The pod {deleted} was deleted during the copy, the producer has stopped, and west has caught up:"
    )
    _print_flow_and_pods(stage)
    conditions = {condition["type"]: condition for condition in stage.resource(FLOW)["status"]["conditions"]}
    lines = [
        f"{kind:<17}{conditions[kind]['status']:<8}{conditions[kind]['reason']}"
        for kind in CONDITIONS
        if kind in conditions
    ]
    _print_command("kubectl describe mirrorflow east-to-west, its conditions", "\n".join(lines))
    status = _print_comparison(stage, producer.acknowledged)
    if status:
        return status
    if "--ui" in sys.argv[1:]:
        _run_console(stage)
    else:
        _print_text(
            "`make demo-kubernetes UI=1` repeats the demo, keeps the clusters running, and opens the console."
        )
    return 0


def _run_console(stage: Stage) -> None:
    """Runs the producer again, with the console on this machine, until Ctrl-C."""
    _print_text(
        "The producer writes again. Open the address below; the console shows the flow, by its status and by port-forwards"
        " to its pods, until Ctrl-C ends the demo."
    )
    kubeconfig = json.loads(stage.kubectl("config", "view", "--flatten", "--raw", "--output=json"))
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = FLOWS
    file = stage.folder / "console.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(kubeconfig))
    program = Path(sys.executable).parent / "mirrorflow"
    command = [program, "ui", "--port", "0", "--context", kubeconfig["current-context"]]
    with SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(TOPIC,), backlog=0, rate=RATE):
        subprocess.run(command, check=False, env={**os.environ, "KUBECONFIG": str(file)})


def _delete_a_pod(stage: Stage, producer: SteadyProducer) -> str:
    """Deletes the source connector's pod, then stops the producer, and waits each time until all records are copied.

    Returns the pod's name.
    """
    time.sleep(WATCH_S)
    name = str(stage.pods(FLOW, "source")[0]["metadata"]["name"])
    stage.kubectl("delete", "pod", name)
    _wait_for_records(stage, _copied_records(stage) + 1)
    time.sleep(WATCH_S)
    producer.stop()
    _wait_for_records(stage, producer.acknowledged)
    return name


def _print_flow_and_pods(stage: Stage) -> None:
    _print_command("kubectl get mirrorflows", stage.kubectl("get", "mirrorflows"))
    _print_command("kubectl get pods", stage.kubectl("get", "pods", f"--namespace={FLOWS}"))


def _copied_records(stage: Stage) -> int:
    copy = f"east.{TOPIC}"
    return stage.west.total_end_offset(copy)


def _wait_for_records(stage: Stage, count: int) -> None:
    wait_until(
        f"{count:,} records on west", lambda: _copied_records(stage) >= count, timeout_s=WAIT_S, poll_s=0.1
    )


def _print_comparison(stage: Stage, acknowledged: int) -> int:
    rows = compare(stage.east, stage.west, {TOPIC: f"east.{TOPIC}"})
    _print_command("a Java consumer reads both clusters from the beginning", as_text(rows))
    is_equal, sentence = verdict(rows, acknowledged)
    is_kept = "--ui" in sys.argv[1:]
    removal = "" if is_kept else " The cluster and all files of the demo are removed now."
    _print_text(f"{sentence}{removal}" if is_equal else sentence)
    return 0 if is_equal else 1


def _print_text(text: str) -> None:
    print(textwrap.fill(text, 100), end="\n\n", flush=True)


def _print_command(command: str, output: str) -> None:
    print(textwrap.indent(f"{command}\n{output.rstrip()}", "    "), end="\n\n", flush=True)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_SIGNAL_BASE + number)


if __name__ == "__main__":
    sys.exit(main())
