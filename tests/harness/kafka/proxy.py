"""A slow, narrow or broken network in front of brokers: one compiled program with a route for each.

The delay is a long cable, not a narrow one: it does not limit throughput (see Proxy.java). The ceiling of one connection,
2 GiB from a Python server to a Python client on the same two cores (3.8 GB/s without the proxy): 1.0 to 1.3 GB/s without
delay, 1.0 to 1.1 GB/s with 40 ms each way, at 0.7 to 1.0 CPU-seconds of the proxy for each GB.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.harness.kafka.installation import java_command
from tests.harness.kafka.processes import Child, HarnessError, arrived_bytes, free_port, start

PROXY_JVM = ("-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=2g", "-Xss512k")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The way to one port; connect to *port*."""

    port: int
    proxy: "Proxy"

    def delay(self, ms_each_way: int) -> None:
        """Whatever arrives from now on leaves *ms_each_way* later: 40 is a round trip of 80 ms."""
        self.proxy.command(f"{self.port} delay {ms_each_way}")

    def throttle(self, bytes_per_s: int) -> None:
        """Each way, all connections together; 0 ends it."""
        self.proxy.command(f"{self.port} throttle {bytes_per_s}")

    def cut(self) -> None:
        """Closes every connection, and each new one at once, until `heal`."""
        self.proxy.command(f"{self.port} cut")

    def blackhole(self) -> None:
        """Nothing passes and nothing closes until `heal`; then the connections continue."""
        self.proxy.command(f"{self.port} blackhole")

    def held_bytes(self) -> int:
        """What has come to the port in a `blackhole` and is not taken, but for one chunk of each connection, which is."""
        return arrived_bytes(self.port)

    def hold_next(self, api_key: int, string: str) -> None:
        """Keeps the next request with *api_key* and the field *string*, and closes its connection."""
        self.proxy.command(f"{self.port} hold {api_key} {string}")

    def is_holding(self) -> bool:
        """Returns whether that request has come."""
        return self.proxy.command(f"{self.port} held")

    def deliver(self) -> None:
        """Sends what is held to the broker, on a connection of its own; returns when the broker has answered."""
        self.proxy.command(f"{self.port} deliver")

    def make_late(self, ms: int) -> None:
        """Breaks every connection in a moment; what was on its way to the broker comes there *ms* later, without answer.

        On the old connections, which the broker has until then: clients send it again on new ones, which are not late.
        """
        self.proxy.command(f"{self.port} late {ms}")

    def heal(self) -> None:
        """Ends `cut` and `blackhole`; delay and throttle stay."""
        self.proxy.command(f"{self.port} heal")


@dataclass(kw_only=True, slots=True)
class Proxy:
    """The program; `routes` has one for each key it was started with."""

    child: Child
    routes: dict[int, Route]

    @classmethod
    def start(cls, targets: Mapping[int, int], *, log: Path) -> Self:
        """Begins to forward to each port of *targets*; returns when it accepts."""
        ports = {key: free_port() for key in targets}
        arguments = [f"{ports[key]}:{target}" for key, target in targets.items()]
        command = java_command("Proxy", *arguments, log=log, heap_mib=512, jvm_options=PROXY_JVM)
        child = start("proxy", command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        proxy = cls(child=child, routes={})
        proxy.routes = {key: Route(port=port, proxy=proxy) for key, port in ports.items()}
        proxy._answer()
        return proxy

    def command(self, line: str) -> bool:
        """Sends *line*; returns its answer when it has taken effect."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(f"{line}\n".encode())
        self.child.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends it, and every connection with it."""
        self.child.kill()
        for pipe in (self.child.process.stdin, self.child.process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self) -> bool:
        assert self.child.process.stdout is not None
        answer = self.child.process.stdout.readline()
        if answer not in {b"ok\n", b"no\n"}:
            raise HarnessError(f"The proxy has failed.\n{self.child.tail()}")
        return answer == b"ok\n"
