"""The requests that services with Kafka's protocol are assumed not to offer, for a proxy that refuses them.

The assumptions come from the public documentation of November 2026. They are simulations, and no test was run on a
service.
"""

from collections.abc import Mapping
from types import MappingProxyType

IDEMPOTENCE = frozenset({22})  # InitProducerId
TRANSACTIONS = frozenset({24, 25, 26, 28})  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit
ACLS = frozenset({29, 30, 31})  # DescribeAcls, CreateAcls, DeleteAcls
EPOCHS = frozenset({23})  # OffsetForLeaderEpoch
CHANGED_SETTINGS = frozenset({44})  # IncrementalAlterConfigs
PRODUCERS = frozenset({61})  # DescribeProducers

# Maps a service to the API keys that it refuses. If the documentation names no missing request, the rarest one is
# refused.
SERVICES: Mapping[str, frozenset[int]] = MappingProxyType(
    {
        "AutoMQ, Confluent Cloud, MSK, Redpanda": PRODUCERS,
        "MSK Serverless": PRODUCERS | ACLS,
        "Event Hubs Premium": PRODUCERS | ACLS | CHANGED_SETTINGS,
        "Event Hubs Standard": PRODUCERS | ACLS | CHANGED_SETTINGS | TRANSACTIONS | IDEMPOTENCE,
        "WarpStream": PRODUCERS | CHANGED_SETTINGS | EPOCHS,
    }
)
