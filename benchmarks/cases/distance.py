"""A backlog with 80 ms of round trip to the source or to the target, through a delaying proxy."""

import socket
import threading
import time
from functools import partial

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.race import THROUGHPUT, race
from benchmarks.results import Result
from tests.harness.kafka.processes import free_port
from tests.harness.kafka.proxy import Proxy

PARTITIONS = 4
RECORD_BYTES = 1000
BATCH_BYTES = 65_536
DELAY_MS = 40  # each way
# MM2 with default settings moves 4 batches of 16 KiB in a round trip to the target: all records would take minutes.
BUDGET_S = 15.0
CONNECT_WAIT_S = 30.0
CEILING_BYTES = 1 << 30
PIECE = bytes(1 << 20)
FASTER = {"source": (3.0, 1.5), "target": (10.0, 2.0)}  # than default MM2, than tuned MM2


def _distance(side: str, arena: Arena, extent: Extent) -> Result:
    records = extent.of(500_000, 200_000)
    result = Result(
        name=f"far-{side}",
        title=f"80 ms of round trip to the {side}",
        setting=f"A backlog of {records:,} records of {RECORD_BYTES} bytes, {PARTITIONS} partitions, uncompressed; the delay is"
        f" {DELAY_MS} ms each way, in a proxy that runs on the same cores. Who is not done in {BUDGET_S:g} s is measured on"
        " what it had copied.",
    )
    ceiling = _ceiling_mb_per_s(arena)
    result.notes.append(f"The proxy alone, one connection with that delay: {ceiling:.0f} MB/s.")
    topic = f"far-{side}"
    arena.load(topic, records, partitions=PARTITIONS, size_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
    cluster = arena.east if side == "source" else arena.west
    cluster.proxy(1).delay(DELAY_MS)
    try:
        race(
            arena,
            result,
            [copiers.mirrorflow(), copiers.mm2(), copiers.tuned_mm2()],
            topic,
            partitions=PARTITIONS,
            records=records,
            record_bytes=RECORD_BYTES,
            repeat=extent.repeat,
            source="PROXIED" if side == "source" else "",
            target="PROXIED" if side == "target" else "",
            budget_s=BUDGET_S,
        )
    finally:
        cluster.proxy(1).delay(0)
    for peer, limit in zip(("MM2", "MM2 tuned"), FASTER[side], strict=True):
        result.demand_ratio(
            f"throughput against {peer}", THROUGHPUT, "MirrorFlow", peer, sense=">=", limit=limit
        )
    return result


def _ceiling_mb_per_s(arena: Arena) -> float:
    """Measures the rate through the proxy, with the delay, from one plain socket to another."""
    arena.folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(CONNECT_WAIT_S)
        sender = threading.Thread(target=_pour, args=(server,), daemon=True)
        sender.start()
        proxy = Proxy.start({0: port}, log=arena.folder / "ceiling.log")
        try:
            proxy.routes[0].delay(DELAY_MS)
            with socket.create_connection(("127.0.0.1", proxy.routes[0].port), CONNECT_WAIT_S) as drain:
                room = bytearray(1 << 20)
                received, began = drain.recv_into(room), time.perf_counter()
                while count := drain.recv_into(room):
                    received += count
                seconds = time.perf_counter() - began
        finally:
            proxy.close()
            sender.join(CONNECT_WAIT_S)
    return received / 1e6 / seconds


def _pour(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        for _ in range(CEILING_BYTES // len(PIECE)):
            connection.sendall(PIECE)


CASES: dict[str, Case] = {f"far-{side}": partial(_distance, side) for side in FASTER}
