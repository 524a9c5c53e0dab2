"""Serves `POST /offsets/translate?reverse=&connector=`: translates offsets that applications keep outside Kafka.

The body and the response are a list in one form of `offset_list_formats`. Nothing is changed. The body is bounded by the server,
the number of offsets here.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import parse_qsl

from mirrorflow_core.errors import InvalidOffsetsError, MirrorFlowError
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.offset_list_formats import OffsetListFormat, format_translations, parse_offsets
from mirrorflow_replicator.http.worker_view import (
    JSON,
    WORD_MAX,
    Request,
    Response,
    WorkerView,
    error_response,
)

# Reading and writing as many takes some 40 ms each, during which the process does nothing else.
OFFSETS_MAX: Final = 5000
ALLOW: Final = (("Allow", "POST"),)
CONTENT_TYPES: Final = {
    OffsetListFormat.CSV: "text/csv; charset=utf-8",
    OffsetListFormat.CSV_WITH_HEADER: "text/csv; charset=utf-8",
    OffsetListFormat.JSON_LINES: "application/x-ndjson",
    OffsetListFormat.JSON_ARRAY: JSON,
}
Translate = Callable[[Sequence[ApplicationOffset], bool], Awaitable[list[ApplicationTranslation]]]


async def respond(request: Request, view: WorkerView) -> Response:
    """Returns the translated offsets, or an error response; a failed request to a cluster is 503."""
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    reverse = query.get("reverse", "false")
    if reverse not in {"true", "false"}:
        return error_response(400, f"reverse: {reverse[:WORD_MAX]} is not true or false.")
    translate = _translate_of(query.get("connector"), view)
    if isinstance(translate, Response):
        return translate
    try:
        form, offsets = parse_offsets(request.body, offsets_max=OFFSETS_MAX)
    except InvalidOffsetsError as error:
        return error_response(400, str(error))
    try:
        translations = await translate(offsets, reverse == "true")
    except MirrorFlowError as error:
        return error_response(503, str(error))
    body = "".join(f"{line}\n" for line in format_translations(form, translations))
    return Response(content_type=CONTENT_TYPES[form], body=body.encode())


def _translate_of(connector: str | None, view: WorkerView) -> Translate | Response:
    """Returns the translation of the only checkpoint connector here, or of the one named *connector*."""
    groups = {
        report.name: report.groups
        for report in view.connectors
        if report.groups is not None and connector in {None, report.name}
    }
    if not groups:
        which = "" if connector is None else f" named {connector[:WORD_MAX]}"
        return error_response(404, f"No checkpoint connector{which} runs in this process.")
    if len(groups) > 1:
        return error_response(400, f"connector: write which one translates, of {', '.join(sorted(groups))}.")
    (report,) = groups.values()
    if report.translate is None:
        return error_response(503, "The checkpoint connector has not read the offset map yet; try again.")
    return report.translate
