"""Routes the HTTP calls between the nodes of a group, on a server for these only (KIP-710).

    POST /{source}/{target}/connectors/{connector}/tasks      the connector's task configs, from its node to the leader
    PUT  /{source}/{target}/connectors/{connector}/fence      fence earlier transactional tasks

As Java's InternalMirrorResource. In MM2's dedicated mode one server is there for all flows, so paths begin
with the flow; a distributed worker's do not. The herder verifies the signature, and so whether the caller
belongs to the group; this module does not. Pure.
"""

from collections.abc import Collection
from urllib.parse import quote, unquote

from mirrorflow_replicator.http.commands import NOT_ALLOWED, NOT_FOUND, Internal, internal_command
from mirrorflow_replicator.http.worker_view import WORD_MAX, Request, Response, error_response

Flow = tuple[str, str]  # aliases of source and target


def flow_path(source: str, target: str) -> str:
    """Returns the beginning of a flow's paths, percent-encoded as UTF-8 for aliases with any characters."""
    return f"/{quote(source, safe='')}/{quote(target, safe='')}"


def flow_of(request: Request) -> Flow | None:
    """Returns the flow in the path of *request*; None if the path is too short for one."""
    parts = _parts(request)
    return None if parts is None or len(parts) < 3 else (parts[0], parts[1])


def route(request: Request, flows: Collection[Flow] | None) -> Response | Internal:
    """Returns the call in *request* for one of *flows*, or an error response.

    *flows* is None for a worker without flows in its paths.
    """
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
    except ValueError:  # not UTF-8 after decoding
        return None
