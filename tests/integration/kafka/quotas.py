"""Client quotas of real brokers (KIP-546), set during a block."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import call_cluster

Entry = AlterClientQuotasRequest.EntryData


@contextmanager
def client_quota(cluster: KafkaCluster, client_id: str | None = None, **rates: float) -> Iterator[None]:
    """Limits one client id, or every client id without its own quota, such as `consumer_byte_rate=20_000`."""
    set_quota(cluster, client_id, **rates)
    try:
        yield
    finally:
        remove_quota(cluster, client_id, *rates)


def set_quota(cluster: KafkaCluster, client_id: str | None, **rates: float) -> None:
    """Limits *client_id* like `client_quota`, until the limit is removed."""
    _alter(cluster, client_id, {key: (rate, False) for key, rate in rates.items()})


def remove_quota(cluster: KafkaCluster, client_id: str | None, *keys: str) -> None:
    """Removes limits of *client_id*. Limits that are not set are ignored."""
    _alter(cluster, client_id, dict.fromkeys(keys, (0.0, True)))


def throttle_ms(replicator: Replicator) -> float:
    """Returns how long brokers have throttled the process: `mirrorflow_throttle_ms_total` of all tasks."""
    totals = re.findall(
        r"^mirrorflow_throttle_ms_total\{.*\} ([\d.e+]+)$", replicator.metrics(), re.MULTILINE
    )
    return sum(map(float, totals))


def _alter(cluster: KafkaCluster, client_id: str | None, changes: dict[str, tuple[float, bool]]) -> None:
    entity = Entry.EntityData(entity_type="client-id", entity_name=client_id)
    ops = [Entry.OpData(key=key, value=value, remove=remove) for key, (value, remove) in changes.items()]
    request = AlterClientQuotasRequest(entries=[Entry(entity=[entity], ops=ops)], validate_only=False)

    async def alter(connected: Cluster) -> None:
        response = await connected.call(request)
        assert [0] == [result.error_code for result in response.entries], response

    call_cluster(cluster, alter)
