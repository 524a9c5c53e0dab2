"""`kubectl mirrorflow`, which kubectl finds as a plugin, shows a flow that copies."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.story import wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.installation import CONTROL
from tests.harness.kubernetes.stage import WAIT_S, Stage
from tests.integration.kafka.groups import put_group

COMMAND_WAIT_S = 120.0
PLUGIN = Path(sys.executable).parent / "kubectl-mirrorflow"


def test_plugin_shows_status_partitions_groups_and_logs_of_a_flow(
    stage: Stage, make_flow: Callable[..., str]
):
    topic = stage.east.create_topic("orders.plugin", partitions=2)
    put_group(stage.east, "readers", {(topic, 0): 0})
    flow = make_flow("plugin", [topic])
    stage.wait_for(flow, "Ready")
    load(stage.east, "orders.plugin", 100)
    wait_for_records(stage, f"{flow}.orders.plugin", 100)

    def plugin_output(*arguments: str) -> str:
        process = subprocess.run(
            ["kubectl", "mirrorflow", *arguments, "--namespace", stage.kubectl.namespace],
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            check=False,
            env={
                **os.environ,
                "PATH": f"{CONTROL}:{PLUGIN.parent}:{os.environ['PATH']}",
                "KUBECONFIG": str(stage.kubectl.kubeconfig),
            },
        )
        assert (process.returncode, process.stderr) == (0, ""), process.stdout + process.stderr
        return process.stdout

    (row,) = json.loads(plugin_output("status", flow, "--json"))["flows"]
    assert (row["name"], row["status"]["flowId"]) == (flow, stage.resource(flow)["status"]["flowId"])
    assert plugin_output("status", flow).splitlines()[1].split()[:2] == [flow, "True"]
    partitions = json.loads(plugin_output("partitions", flow, "--json"))["partitions"]
    copies = {f"{row['targetTopic']}-{row['partition']}" for row in partitions}
    assert copies >= {f"{flow}.orders.plugin-{number}" for number in range(2)}
    assert "INFO" in plugin_output("logs", flow)

    wait_until(
        "the group is shown",
        lambda: (
            {"readers"}
            == {row["group"] for row in json.loads(plugin_output("offsets", flow, "--json"))["offsets"]}
        ),
        timeout_s=WAIT_S,
    )
