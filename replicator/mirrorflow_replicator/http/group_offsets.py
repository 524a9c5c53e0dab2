"""Answers `GET /offsets?group=&connector=&limit=`: the offsets of groups on both sides.

They are those of the checkpoint connector's last pass. Bounded: LIMIT_DEFAULT lines unless `limit` asks for
more; `truncated` is true if there are others. It names groups and topics, as `/progress/partitions` does.
`mirrorflow offsets --json` prints the same lines, one object a line.
"""

from collections.abc import Iterator
from itertools import islice

from mirrorflow_core.checkpoints import GroupOffset
from mirrorflow_replicator.http.worker_view import Response, WorkerView, json_response, limit_of

VERSION = 1
LIMIT_DEFAULT = 1_000
LIMIT_MAX = 100_000  # about 30 MB


def answer(query: dict[str, str], view: WorkerView) -> Response:
    """Returns the response; an unknown group has no lines."""
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
    """Returns one group and partition as a JSON object; ages in seconds."""
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
