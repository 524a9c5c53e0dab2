"""`GET /offsets?group=&connector=&limit=`: where groups stand on both sides, as the checkpoint connector last found them.

Bounded: LIMIT_DEFAULT lines unless asked for more, `truncated` says that there are others. It names groups and topics, as
`/progress/partitions` names topics. The same lines are what `mirrorflow offsets --json` prints, one object a line.
"""

from collections.abc import Iterator
from itertools import islice

from mirrorflow_replicator.connect.view import Response, WorkerView, json_response, limit_of
from mirrorflow_replicator.flow.group_offsets import GroupOffset

VERSION = 1
LIMIT_DEFAULT = 1_000
LIMIT_MAX = 100_000  # some 30 MB


def answer(query: dict[str, str], view: WorkerView) -> Response:
    """See the module. A group that is not known has no lines."""
    limit = limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
    if isinstance(limit, Response):
        return limit
    lines = list(islice(_lines(query, view), limit + 1))
    return json_response({"version": VERSION, "truncated": len(lines) > limit, "offsets": lines[:limit]})


def _lines(query: dict[str, str], view: WorkerView) -> Iterator[dict[str, object]]:
    for report in view.connectors:
        if report.groups is None or query.get("connector", report.name) != report.name:
            continue
        for one in report.groups.offsets(query.get("group")):
            yield {"connector": report.name, **line(one, now_ms=int(view.now_s * 1000))}


def line(one: GroupOffset, *, now_ms: int) -> dict[str, object]:
    """One group and partition; ages in seconds."""
    least, most = one.again
    written = one.checkpoint_written_ms
    return {
        "group": one.group,
        "topic": one.topic,
        "partition": one.partition,
        "targetTopic": one.target_topic,
        "sourceOffset": one.source_offset,
        "targetOffset": one.target_offset,
        "targetOffsetAtMost": one.at_most,
        "translation": one.translation,
        "checkpointOffset": one.checkpoint_offset,
        "checkpointAgeSeconds": None if written is None else round(max(0, now_ms - written) / 1000, 3),
        "groupOffset": one.group_offset,
        "written": one.written,
        "why": one.why,
        "readAgainAtLeast": least,
        "readAgainAtMost": most,
    }
