"""Reads the definitions of MM2's settings from a Java worker: `python -m tests.harness.kafka.plugin_definitions` writes our file.

Documentation is left out: the texts of this project say what a setting does here (docs/settings.md). Run it after a change of
the Kafka release that is followed.
"""

import json
from pathlib import Path
from typing import Any

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.connect_worker import ConnectWorker
from tests.harness.kafka.installation import VERSION

FILE = Path(__file__).parents[3] / "replicator/mirrorflow_replicator/http/plugin_definitions.json"
PLUGINS = ("MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector")


def definitions(worker: ConnectWorker) -> dict[str, Any]:
    """What *worker* says of each of PLUGINS: names in their order, and the definition of each name, which all share."""
    found: dict[str, Any] = {"kafka": VERSION, "plugins": {}, "definitions": {}}
    for plugin in PLUGINS:
        listed = worker.call("GET", f"/connector-plugins/{plugin}/config")
        found["plugins"][plugin] = [one["name"] for one in listed]
        for one in listed:
            del one["documentation"]
            if found["definitions"].setdefault(one["name"], one) != one:
                message = f"{one['name']} is defined differently in {plugin}; the file has no form for that"
                raise ValueError(message)
    return found


def main() -> None:
    with KafkaCluster(name="definitions") as cluster, ConnectWorker(cluster=cluster, group="d") as worker:
        FILE.write_text(json.dumps(definitions(worker), indent=1) + "\n")


if __name__ == "__main__":
    main()
