"""`make demo` copies between two real Kafka clusters, with a kill -9 during copying. With `--ui`, it then opens the
console.

The exit status is 0 if both sides are equal at the end, 1 if not or after an error, and 130 after Ctrl-C. In every case
it ends its processes and removes its files.
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
BACKLOG = 20_000  # records of each topic before the replicator starts
RATE = 1_000  # records per second and topic
WATCH_S = 7.0  # before and after the kill, long enough to see the table change
WAIT_S = 90.0  # for a busy machine
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
    """Runs the demo until it ends, and returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    try:
        with tempfile.TemporaryDirectory(prefix="mirrorflow-demo-") as folder:
            return _run_demo(Path(folder))
    except KeyboardInterrupt:
        print_text("Stopped by Ctrl-C. Both clusters, the replicator and their files are gone.")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1


def _run_demo(folder: Path) -> int:
    begin = time.monotonic()
    print_text("Starting two real Kafka clusters on this machine, east and west, with one broker each.")
    with KafkaCluster(name="east") as east, KafkaCluster(name="west") as west:
        for topic, partitions in TOPICS.items():
            east.create_topic(topic, partitions=partitions)
        print_text(
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
            print_text(
                f"A producer writes to east: {BACKLOG:,} records to each topic at once, then"
                f" {RATE:,} a second. `mirrorflow run -f flow.yaml` runs the flow. {WATCH_S:.0f} seconds after the"
                " first copied record, the demo kills its replicator with kill -9. The command restarts it; it"
                " reads from west what is copied, checks for about four seconds that no other process is copying, and continues"
                " after the last record."
            )
            with RunningFlow(file) as flow:
                killed_pid = _kill_and_wait(west, producer, flow)
            print()
        print_text(
            f"The replicator with the pid {killed_pid} was killed during the copy, the producer has stopped, and west has"
            " caught up. Now a Java consumer reads both clusters from the beginning:"
        )
        status = _print_comparison(east, west, producer.acknowledged)
        if "--ui" in sys.argv[1:] and not status:
            _run_console(east, file)
    if "--ui" not in sys.argv[1:] and not status:
        print_text("`make demo UI=1` repeats the demo, keeps both clusters running, and opens the console.")
    return status


def _run_console(east: KafkaCluster, file: Path) -> None:
    """Runs the flow again with the console, until Ctrl-C."""
    print_text(
        "The producer and the flow run again. Open the address below; the console shows the flow until Ctrl-C"
        " ends the demo."
    )
    program = Path(sys.executable).parent / "mirrorflow"
    with (
        SteadyProducer(bootstrap=east.bootstrap, topics=tuple(TOPICS), backlog=0, rate=RATE),
        RunningFlow(file, is_quiet=True),
    ):
        subprocess.run([program, "ui", "--port", "0", "-f", file], check=False)


def _kill_and_wait(west: KafkaCluster, producer: SteadyProducer, flow: RunningFlow) -> int:
    """Kills the replicator, then stops the producer, and waits each time until all records are copied.

    Returns the killed pid.
    """
    try:
        _wait_for_records(west, flow, more_than=0)
        time.sleep(WATCH_S)
        killed_pid = flow.kill_replicator()
        _wait_for_records(west, flow, more_than=_copied_records(west))
        time.sleep(WATCH_S)
        producer.stop()
        _wait_for_records(west, flow, more_than=producer.acknowledged - 1)
    except HarnessError as error:
        raise HarnessError(f"{error}\nThe end of the replicator's log:\n{flow.log_tail()}") from error
    flow.stop()
    return killed_pid


def _wait_for_records(west: KafkaCluster, flow: RunningFlow, *, more_than: int) -> None:
    def is_copied() -> bool:
        if not flow.running:
            raise HarnessError("`mirrorflow run` ended unexpectedly.")
        return _copied_records(west) > more_than

    wait_until(f"more than {more_than:,} records on west", is_copied, timeout_s=WAIT_S, poll_s=0.1)


def _copied_records(west: KafkaCluster) -> int:
    with contextlib.suppress(KafkaException):
        present = west.topics()
        return sum(
            sum(west.end_offsets(f"east.{topic}").values()) for topic in TOPICS if f"east.{topic}" in present
        )
    return 0


def _print_comparison(east: KafkaCluster, west: KafkaCluster, acknowledged: int) -> int:
    rows = compare(east, west, {topic: f"east.{topic}" for topic in TOPICS})
    print(textwrap.indent(as_text(rows), "    "), end="\n\n")
    is_equal, sentence = verdict(rows, acknowledged)
    is_over = is_equal and "--ui" not in sys.argv[1:]
    print_text(
        f"{sentence} Both clusters and all files of the demo are removed now." if is_over else sentence
    )
    return 0 if is_equal else 1


def print_text(text: str) -> None:
    """Prints a paragraph in lines that fit on the screen."""
    print(textwrap.fill(text, 100), end="\n\n", flush=True)


def _topics() -> str:
    return " and ".join(
        f"{name} ({count} partition{'s' if count > 1 else ''})" for name, count in TOPICS.items()
    )


def exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Ends the process with an exception, so that each `with` block ends what it has started."""
    sys.exit(EXIT_SIGNAL_BASE + number)


if __name__ == "__main__":
    sys.exit(main())
