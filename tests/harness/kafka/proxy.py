"""Simulates a slow, narrow or broken network to brokers with a compiled program that has a route for each broker.

The delay does not limit throughput (see Proxy.java). One connection reaches 1.0 to 1.3 GB/s without delay and 1.0 to
1.1 GB/s with 40 ms in each direction, with 0.7 to 1.0 CPU-seconds of the proxy for each GB. This was measured with 2
GiB from a Python server to a Python client on the same two cores (3.8 GB/s without the proxy).
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
    """The route to one broker. Clients connect to *port*."""

    port: int
    proxy: "Proxy"

    def delay(self, ms_each_way: int) -> None:
        """Delays data that arrives from now on by *ms_each_way*, so that 40 is a round trip of 80 ms."""
        self.proxy.command(f"{self.port} delay {ms_each_way}")

    def throttle(self, bytes_per_s: int) -> None:
        """Limits each direction, for all connections together. 0 removes the limit."""
        self.proxy.command(f"{self.port} throttle {bytes_per_s}")

    def cut(self) -> None:
        """Closes every connection, and each new connection at once, until `heal`."""
        self.proxy.command(f"{self.port} cut")

    def blackhole(self) -> None:
        """Neither forwards nor closes until `heal`. Then the connections continue."""
        self.proxy.command(f"{self.port} blackhole")

    def held_bytes(self) -> int:
        """Returns the bytes that wait at the port in a `blackhole`, except one chunk that each connection has read."""
        return arrived_bytes(self.port)

    def hold_next(self, api_key: int, string: str) -> None:
        """Keeps the next request with *api_key* and the field *string*, and closes its connection."""
        self.proxy.command(f"{self.port} hold {api_key} {string}")

    def is_holding(self) -> bool:
        """Returns whether that request has arrived."""
        return self.proxy.command(f"{self.port} held")

    def deliver(self) -> None:
        """Sends the held request to the broker on its own connection; returns when the broker has responded."""
        self.proxy.command(f"{self.port} deliver")

    def make_late(self, ms: int) -> None:
        """Breaks every connection soon. Requests in flight reach the broker *ms* later, without a response to the
        client.

        They arrive on the old connections, which the broker keeps until then. Clients repeat them on new connections
        without delay.
        """
        self.proxy.command(f"{self.port} late {ms}")

    def heal(self) -> None:
        """Ends `cut` and `blackhole`. Delay and throttle stay."""
        self.proxy.command(f"{self.port} heal")


@dataclass(kw_only=True, slots=True)
class Proxy:
    """The program. `routes` has a route for each key of its targets."""

    child: Child
    routes: dict[int, Route]

    @classmethod
    def start(cls, targets: Mapping[int, int], *, log: Path) -> Self:
        """Starts to forward to each port of *targets*, and returns when the proxy accepts connections."""
        ports = {key: free_port() for key in targets}
        arguments = [f"{ports[key]}:{target}" for key, target in targets.items()]
        command = java_command("Proxy", *arguments, log=log, heap_mib=512, jvm_options=PROXY_JVM)
        child = start("proxy", command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        proxy = cls(child=child, routes={})
        proxy.routes = {key: Route(port=port, proxy=proxy) for key, port in ports.items()}
        proxy._reply()
        return proxy

    def command(self, line: str) -> bool:
        """Sends *line*, and returns the proxy's reply when it has taken effect."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.write(f"{line}\n".encode())
        self.child.process.stdin.flush()
        return self._reply()

    def close(self) -> None:
        """Ends the proxy and every connection."""
        self.child.kill()
        for pipe in (self.child.process.stdin, self.child.process.stdout):
            if pipe is not None:
                pipe.close()

    def _reply(self) -> bool:
        assert self.child.process.stdout is not None
        reply = self.child.process.stdout.readline()
        if reply not in {b"ok\n", b"no\n"}:
            raise HarnessError(f"The proxy has failed.\n{self.child.tail()}")
        return reply == b"ok\n"
