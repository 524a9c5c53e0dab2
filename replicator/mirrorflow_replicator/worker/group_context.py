"""What a node needs to act in its Connect group: the config topic, its membership, and the client for other nodes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.worker.group_member import GroupMember
from mirrorflow_replicator.worker.internal_rest import PeerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """The group of a node, once the group's topics were read."""

    cluster: Cluster
    configs: ConfigTopic
    member: GroupMember
    peers: PeerClient
    read: Callable[[], Awaitable[None]]  # reads the config topic to its end, and applies what it defines
