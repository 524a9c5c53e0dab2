"""`make demo`: the main job on two real Kafka clusters, with a kill -9 in the middle. With `--ui`, the console follows.

Exit status: 0 both sides are equal at the end, 1 they are not or something did not work, 130 Ctrl-C.
Whatever the end, no process and no file of it is left.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException

from tests.harness.demo.comparison import as_text, compare, verdict
from tests.harness.demo.producer import SteadyProducer
from tests.harness.demo.runner import RunningFlow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError, wait_until

TOPICS = {"orders": 3, "payments": 1}
BACKLOG = 20_000  # records of each topic that are there before the replicator is
RATE = 1_000  # records a second and topic
WATCH_S = 7.0  # before the kill, and again after it: long enough to see the table move
WAIT_S = 90.0  # for a machine that is busy with other things
EXIT_SIGNAL_BASE = 128

FLOW = """\
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata:
  name: east-to-west
spec:
  source:
    alias: east
    bootstrapServers: ["{east}"]
  target:
    alias: west
    bootstrapServers: ["{west}"]
  topics:
    include: [orders, payments]
"""


def main() -> int:
    """The exit status; see the module."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with tempfile.TemporaryDirectory(prefix="mirrorflow-demo-") as folder:
            return _story(Path(folder))
    except KeyboardInterrupt:
        _say("Stopped by Ctrl-C. Both clusters, the replicator and their files are gone.")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1


def _story(folder: Path) -> int:
    begin = time.monotonic()
    _say("Two Kafka clusters start, east and west: one broker each, real Kafka on this machine.")
    with KafkaCluster(name="east") as east, KafkaCluster(name="west") as west:
        for topic, partitions in TOPICS.items():
            east.create_topic(topic, partitions=partitions)
        _say(
            f"They are up after {time.monotonic() - begin:.0f} s."
            f" east has the topics {_topics()};"
            " west is empty. This is the flow from one to the other:"
        )
        file = folder / "flow.yaml"
        file.write_text(FLOW.format(east=east.bootstrap, west=west.bootstrap))
        print(textwrap.indent(file.read_text(), "    "))
        with SteadyProducer(
            bootstrap=east.bootstrap, topics=tuple(TOPICS), backlog=BACKLOG, rate=RATE
        ) as producer:
            _say(
                f"A producer has begun to write to east: {BACKLOG:,} records to each topic at once, then"
                f" {RATE:,} a second. The flow is run by `mirrorflow run -f flow.yaml`. {WATCH_S:.0f} seconds after the"
                " first record has arrived, its replicator is killed with kill -9. The command starts it again; it"
                " asks west what has arrived, checks for about four seconds that no other process is copying, and continues"
                " behind the last record."
            )
            with RunningFlow(file) as flow:
                killed = _watch(west, producer, flow)
            print()
        _say(
            f"The replicator with the pid {killed} was killed during the copy, the producer has stopped, and west has"
            " caught up. Now a Java consumer reads both clusters from the beginning:"
        )
        status = _verdict(east, west, producer.acknowledged)
        if "--ui" in sys.argv[1:] and not status:
            _show(east, file)
    if "--ui" not in sys.argv[1:] and not status:
        _say(
            "`make demo UI=1` goes through the same again, keeps both clusters running, and opens the console."
        )
    return status


def _show(east: KafkaCluster, file: Path) -> None:
    """Runs the flow again beside the console, until Ctrl-C."""
    _say(
        "The producer and the flow run again. Open the address below: the console shows what they do, until Ctrl-C"
        " ends all of it."
    )
    program = Path(sys.executable).parent / "mirrorflow"
    with (
        SteadyProducer(bootstrap=east.bootstrap, topics=tuple(TOPICS), backlog=0, rate=RATE),
        RunningFlow(file, is_quiet=True),
    ):
        subprocess.run([program, "ui", "--port", "0"], check=False)


def _watch(west: KafkaCluster, producer: SteadyProducer, flow: RunningFlow) -> int:
    """Let it run, kill it, let it run, stop the producer, wait for the rest; the pid that was killed."""
    try:
        _wait_for_records(west, flow, more_than=0)
        time.sleep(WATCH_S)
        killed = flow.kill_replicator()
        _wait_for_records(west, flow, more_than=_arrived(west))
        time.sleep(WATCH_S)
        producer.stop()
        _wait_for_records(west, flow, more_than=producer.acknowledged - 1)
    except HarnessError as error:
        raise HarnessError(f"{error}\nThe end of the replicator's log:\n{flow.log_tail()}") from error
    flow.stop()
    return killed


def _wait_for_records(west: KafkaCluster, flow: RunningFlow, *, more_than: int) -> None:
    def arrived() -> bool:
        if not flow.running:
            raise HarnessError("`mirrorflow run` has ended by itself.")
        return _arrived(west) > more_than

    wait_until(f"more than {more_than:,} records on west", arrived, timeout_s=WAIT_S, poll_s=0.1)


def _arrived(west: KafkaCluster) -> int:
    with contextlib.suppress(KafkaException):
        present = west.topics()
        return sum(
            sum(west.end_offsets(f"east.{topic}").values()) for topic in TOPICS if f"east.{topic}" in present
        )
    return 0


def _verdict(east: KafkaCluster, west: KafkaCluster, acknowledged: int) -> int:
    rows = compare(east, west, {topic: f"east.{topic}" for topic in TOPICS})
    print(textwrap.indent(as_text(rows), "    "), end="\n\n")
    is_equal, sentence = verdict(rows, acknowledged)
    is_over = is_equal and "--ui" not in sys.argv[1:]
    _say(f"{sentence} Both clusters and all files of the demo are removed now." if is_over else sentence)
    return 0 if is_equal else 1


def _say(text: str) -> None:
    print(textwrap.fill(text, 100), end="\n\n", flush=True)


def _topics() -> str:
    return " and ".join(
        f"{name} ({count} partition{'s' if count > 1 else ''})" for name, count in TOPICS.items()
    )


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_SIGNAL_BASE + number)


if __name__ == "__main__":
    sys.exit(main())
