"""The login by a connection string of Azure Event Hubs, as the page of clouds shows it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_kafka.security.client_security import build_security
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import SecretLayout
from mirrorflow_replicator.config.providers import Resolver

PAGE = Path(__file__).parents[4] / "docs" / "cloud-identities.md"
SECRET = "Endpoint=sb://demo.servicebus.windows.net/;SharedAccessKeyName=mirror;SharedAccessKey=a+b/cd="
CUSTOM = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="$ConnectionString" '
    'password="${{dir:{secrets}/hubs:connectionString}}";'
)


def shown_source() -> dict[str, Any]:
    """Returns `spec.source` of the page's example."""
    (example,) = re.findall(r"```yaml\n([^`]*connectionString[^`]*)```", PAGE.read_text())
    source: dict[str, Any] = yaml.safe_load(example)["spec"]["source"]
    return source


def first_message(source: dict[str, Any], secrets: Path) -> bytes:
    """Returns what the source connector sends to a broker to log in; *secrets* has the Secret."""
    (secrets / "hubs").mkdir()
    (secrets / "hubs" / "connectionString").write_text(SECRET)
    flow = parse_flow(
        {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": "hubs-to-west"},
            "spec": {"source": source, "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]}},
        }
    )
    planned = plan(flow, SecretLayout(secrets=str(secrets), config_maps="/none")).connectors[0]
    prefix = "source.cluster."
    client = {
        key.removeprefix(prefix): value
        for key, value in planned.connector_properties.items()
        if key.startswith(prefix)
    }
    resolved = Resolver(planned.worker_properties).resolve_client(client)
    sasl = build_security(resolved, cluster="hubs").sasl_client("demo.servicebus.windows.net:9093")
    assert sasl is not None
    return asyncio.run(sasl.first())


@pytest.mark.parametrize("type_name", ["Plain", "Custom"])
def test_a_connection_string_is_sent_as_the_password(tmp_path: Path, type_name: str):
    source = shown_source()
    if type_name == "Custom":
        config = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": CUSTOM.format(secrets=tmp_path)}
        source["authentication"] = {"type": "Custom", "config": config}

    message = first_message(source, tmp_path)

    assert b"\0".join([b"", b"$ConnectionString", SECRET.encode()]) == message
