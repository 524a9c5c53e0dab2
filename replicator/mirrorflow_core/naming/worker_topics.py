"""Names the topics in which a worker stores offsets, connectors and states, and recognizes those of any flow."""

import re
from typing import Literal

# Connect workers and MirrorFlow always name these with dots, whatever `replication.policy.separator` is. With
# another separator, Java relies on `topics.exclude`, which a user may have replaced. A policy that keeps
# names would then write one flow's stored offsets, or what it knows of itself, into the topic of another flow.
_WORKER_TOPIC = re.compile(
    r"mm2-(?:configs|offsets|status|claims|identity|offset-map)\..+\.internal", re.DOTALL
)


def worker_topic(store: Literal["offsets", "configs", "status"], source_alias: str) -> str:
    """Return the name that MM2's dedicated mode gives to the topic of *store*."""
    return f"mm2-{store}.{source_alias}.internal"


def is_worker_topic(topic: str) -> bool:
    """Return whether *topic* is a worker's, or holds what a flow knows of itself."""
    return _WORKER_TOPIC.fullmatch(topic) is not None
