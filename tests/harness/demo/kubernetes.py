"""`make demo-kubernetes`: two secured Kafka clusters, the operator by Helm on a real Kubernetes, a flow, a pod that is deleted.

Exit status: 0 both sides are equal at the end, 1 they are not or something did not work, 130 Ctrl-C.
Whatever the end, no process, no file and no network interface of it is left but what was built, in .cache. Needs root.
"""

import signal
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

NAME, NETWORK = "mirrorflow-demo", 244  # beside a cluster of `make cluster`
FLOW = "east-to-west"
TOPIC = "orders"
PARTITIONS = 3
BACKLOG = 20_000  # records that are there before the flow is
RATE = 500  # a second
WATCH_S = 7.0  # before the pod is deleted, and again after it
WAIT_S = 180.0  # for a machine that is busy with other things
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
    """The exit status; see the module."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        require_stage()
        with tempfile.TemporaryDirectory(prefix="mf-demo-") as folder:
            stage = Stage(folder=Path(folder) / "node", name=NAME, network=NETWORK, values={"pollSeconds": 2})
            try:
                return _story(stage)
            finally:
                stage.close()
    except KeyboardInterrupt:
        _say("Stopped by Ctrl-C. The cluster, both Kafka clusters and their files are gone.")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1


def _story(stage: Stage) -> int:
    begin = time.monotonic()
    _say(
        "A Kubernetes starts on this machine: etcd, API server, controllers, scheduler, kubelet, containerd, DNS."
    )
    stage.start_cluster()
    _say(
        f"It is up after {time.monotonic() - begin:.0f} s. Two Kafka clusters start beside it, east and west. Both ask for"
        " TLS and for a password (SCRAM-SHA-512); the certificates of their authorities and the passwords become Secrets."
    )
    stage.start_kafka()
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    _show("kubectl get secrets", stage.kubectl("get", "secrets"))
    _say("The images are built from the Dockerfile, if they are not there yet, and the chart is installed:")
    stage.release.load_images()
    stage.release.install()
    _show(
        "helm install mirrorflow charts/mirrorflow --set watch.cluster=true --wait",
        stage.release.kubectl("get", "pods"),
    )
    _say(
        "This is the flow. It names Secrets and knows no password; neither does the operator, whose role has no verb on them:"
    )
    resource = stage.flow(FLOW, [TOPIC])
    _show("kubectl apply -f flow.yaml", yaml.safe_dump(resource, sort_keys=False))
    with SteadyProducer(
        bootstrap=stage.east.internal_bootstrap, topics=(TOPIC,), backlog=BACKLOG, rate=RATE
    ) as producer:
        applied = time.monotonic()
        stage.apply(resource)
        stage.wait_for(FLOW, "Ready", timeout_s=WAIT_S)
        _say(
            f"{time.monotonic() - applied:.0f} s later it is Ready, which means that records arrive: a producer has written"
            f" {BACKLOG:,} to east and continues with {RATE:,} a second. One pod for each connector:"
        )
        _look(stage)
        deleted = _delete_a_pod(stage, producer)
    _say(f"The pod {deleted} was deleted in the middle, the producer has stopped, and west has caught up:")
    _look(stage)
    found = {one["type"]: one for one in stage.resource(FLOW)["status"]["conditions"]}
    lines = [
        f"{kind:<17}{found[kind]['status']:<8}{found[kind]['reason']}" for kind in CONDITIONS if kind in found
    ]
    _show("kubectl describe mirrorflow east-to-west, its conditions", "\n".join(lines))
    return _verdict(stage, producer.acknowledged)


def _delete_a_pod(stage: Stage, producer: SteadyProducer) -> str:
    """Let it run, delete the source connector's pod, let it run, stop the producer, wait for the rest."""
    time.sleep(WATCH_S)
    name = str(stage.pods(FLOW, "source")[0]["metadata"]["name"])
    stage.kubectl("delete", "pod", name)
    _wait_for_records(stage, _arrived(stage) + 1)
    time.sleep(WATCH_S)
    producer.stop()
    _wait_for_records(stage, producer.acknowledged)
    return name


def _look(stage: Stage) -> None:
    _show("kubectl get mirrorflows", stage.kubectl("get", "mirrorflows"))
    _show("kubectl get pods", stage.kubectl("get", "pods", f"--namespace={FLOWS}"))


def _arrived(stage: Stage) -> int:
    copy = f"east.{TOPIC}"
    return stage.west.total_end_offset(copy)


def _wait_for_records(stage: Stage, count: int) -> None:
    wait_until(f"{count:,} records on west", lambda: _arrived(stage) >= count, timeout_s=WAIT_S, poll_s=0.1)


def _verdict(stage: Stage, acknowledged: int) -> int:
    rows = compare(stage.east, stage.west, {TOPIC: f"east.{TOPIC}"})
    _show("a Java consumer reads both clusters from the beginning", as_text(rows))
    is_equal, sentence = verdict(rows, acknowledged)
    _say(f"{sentence} The cluster and all files of the demo are removed now." if is_equal else sentence)
    return 0 if is_equal else 1


def _say(text: str) -> None:
    print(textwrap.fill(text, 100), end="\n\n", flush=True)


def _show(command: str, output: str) -> None:
    print(textwrap.indent(f"{command}\n{output.rstrip()}", "    "), end="\n\n", flush=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_SIGNAL_BASE + number)


if __name__ == "__main__":
    sys.exit(main())
