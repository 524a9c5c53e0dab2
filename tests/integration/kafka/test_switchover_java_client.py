"""A Java consumer that is not restarted: the name of its bootstrap server is led to the other cluster, and its listener is cut.

It is Apache's ConsoleConsumer. A hosts file of Java stands for DNS, two addresses of this machine for two clusters. Brokers advertise
addresses of their own, so the client has to take its bootstrap name again (KIP-899).
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.forwarder import Forwarder
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.processes import Child, free_port, start, wait_until
from tests.integration.kafka.mirror_pairs import (
    COMMAND_S,
    Application,
    Pair,
    Sides,
    all_numbers,
    pair_sides,
)

NAME = "kafka.pair.test"
ADDRESSES = {"east": "127.0.1.1", "west": "127.0.1.2"}
COMMIT_MS = "100"
HEAP_MIB = 96


@pytest.fixture
def sides() -> Iterator[Sides]:
    with pair_sides(proxied=True) as clusters:
        yield clusters


class JavaConsumer:
    """ConsoleConsumer, a member of the group of *pair*, which connects to `NAME` on *port*; its output has a number a line."""

    def __init__(self, pair: Pair, port: int, properties: dict[str, str]) -> None:
        folder = pair.folder
        self.hosts = folder / "hosts"
        self._out = folder / "numbers.out"
        self._properties = write_properties(
            folder / "consumer.properties",
            {
                "group.id": pair.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": COMMIT_MS,
                "isolation.level": "read_committed",
                **properties,
            },
        )
        self._command = java_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", f"{NAME}:{port}", "--topic", pair.topic),
            *("--command-config", str(self._properties)),
            log=folder / "consumer.log",
            heap_mib=HEAP_MIB,
        )
        # Java reads the file at each resolution and caches nothing.
        options = [f"-Djdk.net.hosts.file={self.hosts}"]
        options += ["-Dsun.net.inetaddr.ttl=0", "-Dsun.net.inetaddr.negative.ttl=0"]
        self._command[1:1] = options
        self.child: Child | None = None

    def start(self) -> None:
        with self._out.open("wb") as out:
            self.child = start(
                "java-consumer", self._command, log=self._out.with_suffix(".err"), stdout=out.fileno()
            )

    def lead_to(self, member: str) -> None:
        """Leads the name to *member*; the file is replaced as a whole."""
        new = self.hosts.with_suffix(".new")
        new.write_text(f"{ADDRESSES[member]} {NAME}\n")
        new.replace(self.hosts)

    def numbers(self) -> list[int]:
        """Returns what it has read so far."""
        whole = self._out.read_text().rpartition("\n")[0]
        return [int(line) for line in whole.splitlines()]


def allow_java_consumer(cluster: KafkaCluster, pair: Pair) -> None:
    """Lets the user of the listener without authentication read as the group, and nothing else."""
    for operation in ("READ", "DESCRIBE"):
        cluster.allow(operation, "TOPIC", pair.topic, user="ANONYMOUS")
        cluster.allow(operation, "GROUP", pair.group, user="ANONYMOUS")


@pytest.mark.more
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_java_consumer_continues_on_the_other_cluster_without_a_restart(
    sides: Sides, tmp_path: Path, protocol: str
):
    """The switchover does not wait for its group (--live-groups). The producer is restarted by its application."""
    pair, port = Pair(sides, tmp_path), free_port()
    consumer = JavaConsumer(pair, port, {"group.protocol": protocol})
    with contextlib.ExitStack() as stack:
        forwarders = {
            alias: stack.enter_context(Forwarder(ADDRESSES[alias], port, cluster.proxy(1).port))
            for alias, cluster in sides.items()
        }
        for cluster in sides.values():
            allow_java_consumer(cluster, pair)
        forward = stack.enter_context(pair.running("east-to-west", "forward"))
        application = stack.enter_context(Application(pair))
        consumer.lead_to("east")
        consumer.start()
        assert consumer.child is not None
        stack.callback(consumer.child.kill)
        wait_until("the consumer reads", lambda: len(consumer.numbers()) > 50)
        pid = consumer.child.pid
        output = tmp_path / "switchover.out"
        command = pair.line("--to", "west", "--live-groups", "--report", tmp_path / "report.json")
        with output.open("wb") as file:
            switchover = stack.enter_context(subprocess.Popen(command, stdout=file, stderr=file))
        wait_until("writes are refused", application.was_refused.is_set)
        back = stack.enter_context(pair.running("west-to-east", "back"))
        wait_until("clients are led to west", lambda: pair.endpoint.read_text() == "west")
        # What the endpoint hook of a user does: the name flips, and the listener of the other cluster is cut.
        consumer.lead_to("west")
        forwarders["east"].cut()
        sides["east"].proxy(1).cut()
        assert 0 == switchover.wait(COMMAND_S), output.read_text() + forward.output() + back.output()
        before = application.written_to("west")
        wait_until("the application continues", lambda: application.written_to("west") > before + 50)
        application.stop()
        sent = [number for _, number in application.acknowledged]
        wait_until("the consumer has read all", lambda: consumer.numbers()[-1:] == sent[-1:])
        read = consumer.numbers()

        assert consumer.child.running
        assert pid == consumer.child.pid
        print(f"{protocol}: {len(sent)} records, {len(read) - len(set(read))} read again")
        assert sent == sorted(set(read))
        assert sent == all_numbers(pair, "west")
        os.kill(pid, signal.SIGTERM)
