"""Measures polling of 3,000 connectors each half minute: the poller in this process, stubs in another."""

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result
from mirrorflow_operator.cluster.progress_client import PollTarget
from mirrorflow_operator.cluster.progress_poller import INTERVAL_S, Poller
from mirrorflow_operator.metrics import NAMESPACE
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import start, wait_until
from tests.harness.kubernetes.stub_connectors import addresses, stub_command

BLOCK = 78  # of 127.0.0.0/8
PODS = 3_000
PER_FLOW = 3
FIRST_S = INTERVAL_S + 5.0  # until each pod is polled once
ROW = f"{PODS:,} pods"


def polling(result: Result, seconds: float) -> None:
    """Demands at most a tenth of a core, and that unchanged reports of pods notify no flow."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stubs.log"
        stubs = start("stubs", stub_command(HTTP_PORT, BLOCK, PODS), log=log)
        try:
            wait_until("stubs listen", lambda: "ready" in log.read_text(), timeout_s=60)
            asyncio.run(_ask(result, seconds))
        finally:
            stubs.kill()
    result.demand("polling, of one core", "core_percent", ROW, sense="<=", limit=10, unit="%")
    result.demand("flows notified without a change", "notified", ROW, sense="<=", limit=0, unit="")
    result.demand("failed polls", "failed", ROW, sense="<=", limit=0, unit="")


async def _ask(result: Result, seconds: float) -> None:
    notified: list[object] = []
    poller = Poller(changed=notified.append)
    hosts = addresses(BLOCK, PODS)
    running = asyncio.create_task(poller.run())
    for first in range(0, PODS, PER_FLOW):
        places = [PollTarget(uid=host, host=host, ready=True) for host in hosts[first : first + PER_FLOW]]
        poller.set_targets(("team", f"flow-{first}"), places)
    await asyncio.sleep(FIRST_S)
    before, asked, began, used = (
        len(notified),
        _sample(poller, "polls_total"),
        time.monotonic(),
        time.process_time(),
    )
    await asyncio.sleep(seconds)
    took, cpu = time.monotonic() - began, time.process_time() - used
    polls = _sample(poller, "polls_total") - asked
    result.add(
        ROW,
        seconds=took,
        polls=polls,
        core_percent=100 * cpu / took,
        microseconds_a_poll=cpu / polls * 1e6,
        notified=len(notified) - before,
        failed=_sample(poller, "polls_failed_total"),
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _sample(poller: Poller, name: str) -> float:
    return poller.metrics.registry.get_sample_value(f"{NAMESPACE}_{name}") or 0.0
