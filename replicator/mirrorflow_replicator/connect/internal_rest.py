"""What the nodes of a group ask of each other over HTTP, where nothing else is answered (KIP-710, InternalMirrorResource).

    POST /{source}/{target}/connectors/{connector}/tasks      the connector's tasks, from who runs it to the leader
    PUT  /{source}/{target}/connectors/{connector}/fence      end earlier transactional tasks

In MM2's dedicated mode one server is there for all flows, so paths begin with the flow; a distributed worker's do not.
Whether the caller is of the group is not looked at here: the signature is the herd's. Pure.
"""

from collections.abc import Collection
from urllib.parse import quote, unquote

from mirrorflow_replicator.connect.commands import NOT_ALLOWED, NOT_FOUND, Internal, internal_command
from mirrorflow_replicator.connect.view import WORD_MAX, Request, Response, error_response

Flow = tuple[str, str]  # aliases of source and target


def flow_path(source: str, target: str) -> str:
    """What the paths of a flow begin with, percent-encoded as UTF-8, whatever letters its aliases have."""
    return f"/{quote(source, safe='')}/{quote(target, safe='')}"


def flow_of(request: Request) -> Flow | None:
    """Which flow *request* is about; None where its path has no room for one."""
    parts = _parts(request)
    return None if parts is None or len(parts) < 3 else (parts[0], parts[1])


def route(request: Request, flows: Collection[Flow] | None) -> Response | Internal:
    """What *request* asks of one of *flows*, None for a worker without any; or the refusal."""
    parts = _parts(request)
    if parts is None:
        return error_response(400, "HTTP 400 Bad Request")
    path = parts if flows is None else parts[2:]
    called = internal_command(request, path)
    if called is None:
        known = len(path) == 3 and path[0] == "connectors" and path[2] in {"tasks", "fence"}
        return error_response(405, NOT_ALLOWED) if known else error_response(404, NOT_FOUND)
    if flows is not None and (parts[0], parts[1]) not in flows:
        source, target = (part[:WORD_MAX] for part in parts[:2])
        return error_response(404, f"No replication flow found for source '{source}' and target '{target}'")
    return called


def _parts(request: Request) -> list[str] | None:
    try:
        return [unquote(part, errors="strict") for part in request.path.split("/")[1:] if part]
    except ValueError:  # not UTF-8 behind the percent signs
        return None
