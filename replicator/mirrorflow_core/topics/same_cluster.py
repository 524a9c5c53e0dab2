"""Decides whether a flow may run whose source and target turn out to be one cluster.

Two addresses can lead to one cluster, so only the ids that brokers report show it. Such a flow reads its own copies: it copies
each record again, without end, unless its copies have names that it does not select.
"""

from collections.abc import Collection

from mirrorflow_core.errors import SameClusterError
from mirrorflow_core.topics.topic_selection import TopicSelection


def same_cluster_refusal(
    selection: TopicSelection,
    *,
    source_alias: str,
    target_alias: str,
    cluster_id: str,
    topics: Collection[str],
) -> SameClusterError | None:
    """Returns why the flow must not run where both of its sides are cluster *cluster_id*; None if it makes no loop.

    *topics* are those of the source that are known. A flow that keeps all names is refused without any.
    """
    known = sorted({*topics, *selection.named})
    looping = next(
        (topic for topic in known if selection.copies(topic) and selection.selects_copy_of(topic)), None
    )
    if looping is None and not selection.keeps_names:
        return None
    copy = None if looping is None else selection.target_topic(looping)
    return SameClusterError(
        source=source_alias, target=target_alias, cluster_id=cluster_id, topic=looping, copy=copy
    )


def same_cluster_warning(*, source_alias: str, target_alias: str, cluster_id: str) -> str:
    """Returns the warning of a flow that runs within one cluster."""
    return (
        f"{source_alias} and {target_alias} are one cluster ({cluster_id}): copies are made beside their originals. "
        "If that is not intended, correct the addresses of one of them."
    )
