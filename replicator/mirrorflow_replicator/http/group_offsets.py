"""Answers `/offsets`: the offsets of consumer groups on the source, and where they are on the target."""

from collections.abc import Iterator
from itertools import islice

from mirrorflow_core.offsets.checkpoints import GroupOffset
from mirrorflow_replicator.http.worker_view import Response, WorkerView, json_response, limit_of

OFFSETS_VERSION = 1
OFFSETS_DEFAULT = 1_000
OFFSETS_MAX = 100_000  # about 30 MB


def offsets(query: dict[str, str], view: WorkerView) -> Response:
    """Answers `GET /offsets?limit=&connector=&group=`; an unknown group has no lines."""
    limit = limit_of(query, default=OFFSETS_DEFAULT, maximum=OFFSETS_MAX)
    if isinstance(limit, Response):
        return limit
    lines = list(islice(_lines(query, view), limit + 1))
    return json_response(
        {"version": OFFSETS_VERSION, "truncated": len(lines) > limit, "offsets": lines[:limit]}
    )


def _lines(query: dict[str, str], view: WorkerView) -> Iterator[dict[str, object]]:
    for report in view.connectors:
        if report.groups is None or query.get("connector", report.name) != report.name:
            continue
        for offset in report.groups.offsets(query.get("group")):
            yield {"connector": report.name, **group_offset_json(offset, now_ms=int(view.now_s * 1000))}


def group_offset_json(offset: GroupOffset, *, now_ms: int) -> dict[str, object]:
    """Returns one group and partition as a JSON object; ages in seconds."""
    least, most = offset.again
    written = offset.checkpoint_written_ms
    return {
        "group": offset.group,
        "topic": offset.topic,
        "partition": offset.partition,
        "targetTopic": offset.target_topic,
        "sourceOffset": offset.source_offset,
        "targetOffset": offset.target_offset,
        "targetOffsetAtMost": offset.at_most,
        "translation": offset.translation,
        "checkpointOffset": offset.checkpoint_offset,
        "checkpointAgeSeconds": None if written is None else round(max(0, now_ms - written) / 1000, 3),
        "groupOffset": offset.group_offset,
        "written": offset.written,
        "why": offset.why or "",
        "readAgainAtLeast": least,
        "readAgainAtMost": most,
        "hasMembersOnSource": offset.has_members_on_source,
        "hasMembersOnTarget": offset.has_members_on_target,
    }
