"""Reads the definitions of MM2's settings from a Java worker.

`python -m tests.harness.kafka.plugin_definitions` writes the file. Documentation texts are left out, because
docs/settings.md describes the settings of this project. Run it when the Kafka release changes.
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
    """Returns the names of each of PLUGINS in order, and the definition of each name, which all plugins share."""
    result: dict[str, Any] = {"kafka": VERSION, "plugins": {}, "definitions": {}}
    for plugin in PLUGINS:
        listed = worker.call("GET", f"/connector-plugins/{plugin}/config")
        result["plugins"][plugin] = [definition["name"] for definition in listed]
        for definition in listed:
            del definition["documentation"]
            if result["definitions"].setdefault(definition["name"], definition) != definition:
                message = (
                    f"{definition['name']} is defined differently in {plugin}; the file has no form for that"
                )
                raise ValueError(message)
    return result


def main() -> None:
    with KafkaCluster(name="definitions") as cluster, ConnectWorker(cluster=cluster, group="d") as worker:
        FILE.write_text(json.dumps(definitions(worker), indent=1) + "\n")


if __name__ == "__main__":
    main()
