"""Lists the minimum ACLs of a flow's checkpoint and heartbeat connectors, which may have their own users.

`grants` lists those of the source connector, `mirrorflow_core.permissions` has the operations.
"""

from collections.abc import Iterator

from mirrorflow_cli.grants import Grant, group_grants, internal_names, patterns, remote_patterns
from mirrorflow_core.connect.offset_map_records import offset_map_topic
from mirrorflow_core.permissions import GROUP_MOVED, GROUP_READ, HEARTBEATS, LOG, READ_LOG
from mirrorflow_operator.api.spec import MirrorFlow, Side
from mirrorflow_operator.plan.plan import ConnectorKind


def checkpoint_grants(flow: MirrorFlow, side: Side) -> Iterator[Grant]:
    """Yields the ACLs that the checkpoint connector needs on *side*."""
    spec = flow.spec
    moves = spec.groups.sync_offsets
    on_target = side is Side.TARGET
    for name, prefixed in remote_patterns(flow) if on_target else patterns(spec.topics.include):
        access = GROUP_MOVED if on_target and moves else GROUP_READ
        yield Grant(kind="topic", name=name, access=access, prefixed=prefixed)
    if moves or not on_target:
        for name, prefixed in patterns(spec.groups.include):
            access = GROUP_MOVED if on_target else GROUP_READ
            yield Grant(kind="group", name=name, access=access, prefixed=prefixed)
    names = internal_names(flow)
    if spec.offset_syncs.location is side:
        other = spec.source.alias if on_target else spec.target.alias
        yield Grant(kind="topic", name=names.offset_syncs_topic(other), access=READ_LOG)
    if on_target:
        yield Grant(kind="topic", name=offset_map_topic(spec.source.alias), access=READ_LOG)
        yield Grant(kind="topic", name=names.checkpoints_topic(spec.source.alias), access=LOG)
        yield from group_grants(flow, ConnectorKind.CHECKPOINT, spec.connectors.checkpoint)


def heartbeat_grants(flow: MirrorFlow, side: Side) -> Iterator[Grant]:
    """Yields the ACLs that the heartbeat connector needs on *side*; none if it does not write there."""
    if side in flow.spec.heartbeats.emit_to:
        topic = internal_names(flow).heartbeats_topic()
        yield Grant(kind="topic", name=topic, access=HEARTBEATS)
