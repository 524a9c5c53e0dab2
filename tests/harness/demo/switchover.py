"""`make demo-switchover` moves a Java producer and a Java consumer group to another real Kafka cluster, and back.

The exit status is 0 if every acknowledged record was read once and both sides are equal at the end, 1 if not or after
an error, and 130 after Ctrl-C. In every case it ends its processes and removes its files.
"""

import contextlib
import json
import signal
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mirrorflow_core.switchover.states import SwitchoverState
from tests.harness.demo.__main__ import EXIT_SIGNAL_BASE, exit_on_signal, print_text
from tests.harness.demo.runner import RunningFlow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.pair_clients import PairClients, PairConsumer, PairProducer
from tests.harness.kafka.processes import HarnessError, start, wait_until
from tests.harness.kafka.tools import digest
from tests.harness.pair_files import APP, allow_users, flow_file, secured_cluster, write_pair

TOPIC, GROUP, PAIR = "orders", "billing", "east-west"
PARTITIONS = 3
RATE = 200  # records per second
WATCH_S = 3.0  # seconds before each move
WAIT_S = 180.0  # for a busy machine
STOP_CONSUMERS = "consumers of these groups are stopped"
STATES = frozenset(state.value for state in SwitchoverState)
START_FLOW = "Waits for the first record of the flow"

PAIR_SHOWN = """\
kind: MirrorPair
metadata: {name: east-west}
spec:
  members: {east: {flow: east-to-west}, west: {flow: west-to-east}}
  fence: {method: DenyAcl, exceptPrincipals: ["User:mirror"]}
  endpoint: {hook: {command: [...]}}   # writes the name of the active cluster into a file that clients read
"""


def main() -> int:
    """Runs the demo until it ends, and returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    try:
        with tempfile.TemporaryDirectory(prefix="mirrorflow-demo-") as folder:
            return _run_demo(Path(folder))
    except KeyboardInterrupt:
        print_text("Stopped by Ctrl-C. Both clusters, all clients and their files are gone.")
        return EXIT_SIGNAL_BASE + signal.SIGINT
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1


def _run_demo(folder: Path) -> int:
    begin = time.monotonic()
    print_text(
        "Starting two real Kafka clusters with ACLs on this machine, east and west, with one broker each."
    )
    with secured_cluster("east") as east, secured_cluster("west") as west, contextlib.ExitStack() as stack:
        sides = {"east": east, "west": west}
        for cluster in sides.values():
            allow_users(cluster, TOPIC)
        east.create_topic(TOPIC, partitions=PARTITIONS)
        print_text(
            f"They are up after {time.monotonic() - begin:.0f} s. A flow copies {TOPIC} to west, and this pair moves its"
            " applications:"
        )
        print(textwrap.indent(PAIR_SHOWN, "    "))
        clients = PairClients(sides=sides, user=APP, folder=folder, topic=TOPIC, group=GROUP)
        pair = write_pair(
            folder, sides, name=PAIR, topic=TOPIC, group=GROUP, endpoint=clients.endpoint, deadline_s=120
        )
        clients.write_properties(protocol="classic")
        demo = Demo(
            clients,
            pair,
            stack,
            PairProducer(clients=clients, name="shop", rate=RATE),
            PairConsumer(clients=clients),
        )
        demo.begin()
        demo.move("west")
        demo.move("east")
        return demo.finish(east, west)


@dataclass(slots=True)
class Demo:
    """The running demo. *stack* ends its flows."""

    clients: PairClients
    pair: Path
    stack: contextlib.ExitStack
    producer: PairProducer
    consumer: PairConsumer
    is_over: bool = False

    def begin(self) -> None:
        """Starts the flow and both clients, and returns when the group reads the written records."""
        self._start_flow("east")
        self.producer.start()
        self.consumer.start()
        wait_until(
            "the group reads", lambda: self._update() and len(self.consumer.reads) > RATE, timeout_s=WAIT_S
        )
        west = self.clients.sides["west"]
        wait_until("records are copied", lambda: west.total_end_offset(TOPIC) > RATE, timeout_s=WAIT_S)
        print_text(
            f"A Java producer (acks=all, idempotent) writes {RATE} records a second to east. It keeps what is not acknowledged, and"
            f" restarts its client when a record is refused. A Java consumer of the group {GROUP} reads and commits them. On each cluster a DENY"
            " for Write will keep the producer away while the other one is active."
        )

    def move(self, to: str) -> None:
        """Runs the command, does what it requests of its user, and prints what both clients have read and written."""
        self._watch(WATCH_S)
        begin_ms = time.time_ns() // 1_000_000
        report = self.clients.folder / f"to-{to}.json"
        print(f"    $ mirrorflow switchover -f pair.yaml --to {to} --report to-{to}.json", flush=True)
        program = Path(sys.executable).parent / "mirrorflow"
        arguments = ["-f", self.pair, "--secrets", self.clients.folder, "--to", to, "--report", report]
        log = self.clients.folder / f"to-{to}.log"
        command = start("switchover", [str(program), "switchover", *map(str, arguments)], log=log)
        shown, states = 0, set[str]()
        source = self.clients.active()
        while True:
            has_ended = not command.running
            for line in log.read_text().splitlines()[shown:]:
                shown += 1
                state = state_in(line)
                if state and state not in states:
                    print(f"{'' if states else '    '}{state}", end=" ", flush=True)
                    states.add(state)
                if STOP_CONSUMERS in line:
                    print(
                        f"\n    (it waits for the consumers of {GROUP}: the demo stops its consumer)\n   ",
                        end=" ",
                    )
                    self.clients.hold.touch()
                if START_FLOW in line:
                    self._start_flow(to)
            if self.clients.active() == to:
                self.clients.hold.unlink(missing_ok=True)
            self._update()
            if has_ended:
                break
            time.sleep(0.05)
        print("\n", flush=True)
        if command.process.returncode:
            raise HarnessError(f"The switchover to {to} has failed.\n{log.read_text()}")
        self._wait_for_clients(to, source)
        self._print_pause(json.loads(report.read_text()), to, begin_ms)

    def finish(self, east: KafkaCluster, west: KafkaCluster) -> int:
        """Stops the producer, waits until all records are copied, compares, and returns the exit status."""
        self._watch(WATCH_S)
        self.is_over = True
        self.producer.stop()
        written = self.producer.acknowledged()
        wait_until(
            "the group has read all records",
            lambda: self._update() and len(self.consumer.reads) >= written,
            timeout_s=WAIT_S,
        )
        sides: list[dict[int, tuple[int, str]]] = []

        def are_equal() -> bool:
            sides[:] = [digest(cluster, TOPIC, isolation="read_committed") for cluster in (east, west)]
            return sides[0] == sides[1]

        with contextlib.suppress(HarnessError):
            wait_until("both clusters are equal", are_equal, timeout_s=WAIT_S, poll_s=1.0)
        self.consumer.stop()
        counts = Counter((read.producer, read.attempt) for read in self.consumer.reads)
        repeated = sum(count - 1 for count in counts.values())
        lost = written - len(counts.keys() & self._acknowledged())
        by = {member: self.producer.acknowledged(member) for member in ("east", "west")}
        totals = [sum(count for count, _ in side.values()) for side in sides]
        is_exact = not lost and not repeated and sides[0] == sides[1]
        print_text(
            f"The producer has stopped: {written:,} records acknowledged, {by['east']:,} by east and {by['west']:,} by west. The group has"
            f" read {len(counts):,}, {repeated} twice, and {lost} acknowledged ones not at all. east has {totals[0]:,} records, west"
            f" {totals[1]:,}; the digests of the {PARTITIONS} partitions are {'equal' if sides[0] == sides[1] else 'DIFFERENT'}."
        )
        print_text(
            "Exact: each acknowledged record was read once. Both clusters and all files of the demo are removed now."
            if is_exact
            else "NOT EXACT. This is a bug."
        )
        return 0 if is_exact else 1

    def _acknowledged(self) -> set[tuple[str, int]]:
        return {
            (self.producer.name, index)
            for index, attempt in enumerate(self.producer.attempts)
            if attempt.time_ms
        }

    def _start_flow(self, source: str) -> None:
        """Starts the flow from *source*, unless it runs. The flow that has ended keeps running as the next reverse flow."""
        file, log = flow_file(self.clients.folder, source), self.clients.folder / f"from-{source}.flow.log"
        if not log.exists():
            log.touch()
            flow = RunningFlow(file, "--secrets", self.clients.folder, is_quiet=True)
            self.stack.enter_context(flow)

    def _wait_for_clients(self, to: str, source: str) -> None:
        def has_moved() -> bool:
            self._update()
            return self.consumer.reads[-1].member == to and self.producer.attempts[-1].member == to

        wait_until(f"both clients have moved from {source} to {to}", has_moved, timeout_s=WAIT_S)

    def _print_pause(self, report: dict[str, object], to: str, begin_ms: int) -> None:
        acknowledged = sorted(
            attempt.time_ms for attempt in self.producer.attempts if attempt.time_ms > begin_ms
        )
        read = [record.time_ms for record in self.consumer.reads if record.time_ms > begin_ms]
        print_text(
            f"{to} is active. Writes were refused for {report['writesRefusedSeconds']:.1f} s at most. The producer was restarted once and had no"
            f" acknowledgement for {_longest_s(acknowledged):.1f} s; the group read nothing for {_longest_s(read):.1f} s."
        )

    def _watch(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._update()
            time.sleep(0.1)

    def _update(self) -> bool:
        for application in (self.producer, self.consumer):
            assert application.child is not None
            if not self.is_over:
                application.child.must_run()
            application.update()
        return True


def state_in(line: str) -> str:
    """Returns the state that a line of the command has after its time; "" for any other line, such as one of a traceback."""
    _, _, rest = line.partition("  ")
    word = rest.split(maxsplit=1)[0] if rest.strip() else ""
    return word if word in STATES else ""


def _longest_s(times_ms: list[int]) -> float:
    """Returns the longest time between two consecutive *times_ms*, which are sorted."""
    return max((after - before for before, after in pairwise(times_ms)), default=0) / 1000


if __name__ == "__main__":
    sys.exit(main())
