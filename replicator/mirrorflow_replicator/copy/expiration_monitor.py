"""Polls how long the target remembers producers and transactional ids, which may change while brokers run.

Kafka's defaults apply where DescribeConfigs on the cluster is not granted.
"""

import asyncio
import contextlib
from collections.abc import Callable

from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.writer.form import plain_age_limit_ms
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import PRODUCER_EXPIRATION_MS, CopierContext
from mirrorflow_replicator.copy.task_writer import TaskWriter

# Far less than the time between two checks of a broker (producer.id.expiration.check.interval.ms, ten
# minutes).
READ_EVERY_S = 15.0
PRODUCER_KEY = "producer.id.expiration.ms"
TRANSACTIONAL_ID_KEY = "transactional.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_MS = 7 * 86_400_000


async def read_expiries(target: Cluster) -> tuple[int, float]:
    """Returns the target's expiration settings. Raises ClusterError.

    The first is the age in ms after which leaders forget a record's producer. The second is for how many
    seconds coordinators remember an unused transactional id.
    """
    found = {PRODUCER_KEY: PRODUCER_EXPIRATION_MS, TRANSACTIONAL_ID_KEY: TRANSACTIONAL_ID_EXPIRATION_MS}
    node_id = next(iter(target.metadata.brokers))
    with contextlib.suppress(NotAuthorizedError):
        entries = await admin.describe_broker_configs(target, node_id, list(found))
        found |= {name: int(entry.value) for name, entry in entries.items() if name in found and entry.value}
    return found[PRODUCER_KEY], found[TRANSACTIONAL_ID_KEY] / 1000


async def apply_expiries(target: Cluster, around: CopierContext, writer: TaskWriter) -> None:
    """Reads the settings once, for all partition copiers of a task. Raises ClusterError."""
    forgotten_ms, writer.expires_s = await read_expiries(target)
    around.plain_age_limit_ms = plain_age_limit_ms(forgotten_ms)


async def follow_expiries(
    target: Cluster, around: CopierContext, writer: TaskWriter, *, on_error: Callable[[MirrorFlowError], None]
) -> None:
    """Applies the settings until cancelled."""
    while True:
        await asyncio.sleep(READ_EVERY_S)
        try:
            await apply_expiries(target, around, writer)
        except MirrorFlowError as error:
            on_error(error)
