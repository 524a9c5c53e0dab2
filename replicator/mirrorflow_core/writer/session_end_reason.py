"""Decides whether the session of a task must end.

It must when the acknowledged records do not show where one of its partitions continues: the next session finds in the logs what
was written (`takeover`). After a refusal that appended nothing, and after records of other producers, a partition continues in
the same session, after its last acknowledged record.
"""

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.stream import Stream


def session_end_reason(
    target: TopicPartition,
    stream: Stream | None,
    *,
    has_lost_responses: bool,
    has_new_leader: bool,
    has_repeat: bool = False,
    refused_next: int | None = None,
    has_diverged: bool = False,
) -> str | None:
    """Returns why the session must end because of partition *target*; None if it need not.

    *stream* is None before the partition begins to copy.

    *has_repeat*: a response was about a batch that the leader had already. *refused_next*: the ordinal that the leader
    refused as out of order; None: it has refused none. *has_diverged*: the source has other records before the next one than were copied.
    """
    if has_repeat:
        return f"{target} has other batches with our numbers"
    if stream is not None and refused_next == stream.delivered.ordinal + 1:
        return f"the leader of {target} expects other sequence numbers"
    if has_lost_responses:
        return f"what was written to {target} was not answered"
    if has_new_leader:
        return f"{target} has another leader"
    if stream is not None and stream.has_fallen_back:
        return f"{target} has lost records"
    if has_diverged:
        return f"the source of {target} has other records than before"
    return None
