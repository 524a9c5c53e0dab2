"""Requests to the API server: JSON in, JSON out, a bound on each wait, one class of error for each way to go wrong.

No models: objects are the API's own dicts. Nothing is retried here; who asks knows whether asking again makes sense.
"""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import aiohttp
import kopf

from mirrorflow_operator import errors
from mirrorflow_operator.cluster.kinds import FIELD_MANAGER, Kind
from mirrorflow_operator.metrics import Metrics

REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
# Workers, list and Lease at once; the API server's own fairness is what limits beyond that.
CONNECTIONS_MAX: Final = 32
CREDENTIALS_AGE_MAX_S: Final = 60.0
CHUNK: Final = 200  # objects of one answer to a list: a megabyte, and a few more while it is parsed
ANSWER_MAX_LETTERS: Final = 1_000  # of a refusal in an error; policies quote whole objects
APPLY: Final = "application/apply-patch+yaml"
_CLASSES: Final[Mapping[int, type[errors.ClusterError]]] = {
    401: errors.ForbiddenError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    410: errors.GoneError,
    429: errors.BusyError,
}
Object = dict[str, Any]


class Client:
    """One API server. *connect* gives address and credentials as of now."""

    def __init__(self, connect: Callable[[], kopf.ConnectionInfo], metrics: Metrics) -> None:
        self._connect = connect
        self._metrics = metrics
        self._info: kopf.ConnectionInfo | None = None
        self._read_at = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Object:
        """What is at *path*."""
        return await self._request("GET", path, "read", "", timeout_s=timeout_s)

    async def read(
        self, kind: Kind, namespace: str, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Object:
        """One object."""
        return await self._request("GET", kind.path(namespace, name), "get", kind.plural, timeout_s=timeout_s)

    async def chunks(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "", limit: int = CHUNK
    ) -> AsyncIterator[tuple[int, list[Object]]]:
        """Every object of *kind*, a chunk at a time, each with the version of the whole list."""
        params = {"limit": str(limit)}
        if labels:
            params["labelSelector"] = labels
        if fields:
            params["fieldSelector"] = fields
        while True:
            answer = await self._request("GET", kind.path(namespace), "list", kind.plural, params=params)
            yield int(answer["metadata"].get("resourceVersion") or 0), answer["items"]
            following = answer["metadata"].get("continue")
            if not following:
                return
            params["continue"] = following

    async def apply(self, kind: Kind, body: Object, *, subresource: str = "", force: bool = True) -> Object:
        """Server-side apply as the operator's one field manager. ConflictError where a precondition in *body* fails."""
        metadata = body["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], subresource)
        params = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        what = f"{kind.plural}/{subresource}" if subresource else kind.plural
        return await self._request("PATCH", path, "apply", what, params=params, body=body, content_type=APPLY)

    async def create(
        self, kind: Kind, namespace: str, body: Object, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Object:
        """A new object; ConflictError where there is one of its name."""
        path = kind.path(namespace)
        return await self._request("POST", path, "create", kind.plural, body=body, timeout_s=timeout_s)

    async def replace(
        self, kind: Kind, namespace: str, name: str, body: Object, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Object:
        """The whole object; ConflictError where it is not of the resourceVersion in *body* any more."""
        path = kind.path(namespace, name)
        return await self._request("PUT", path, "update", kind.plural, body=body, timeout_s=timeout_s)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """That very object and what it owns; ConflictError where another one has its name by now."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        await self._request("DELETE", kind.path(namespace, name), "delete", kind.plural, body=body)

    async def _request(
        self,
        method: str,
        path: str,
        verb: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Object:
        asked = f"{method} {path}"
        session, info = self._connected()
        headers = {**info.as_http_headers(), "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = content_type
        code = "0"
        try:
            async with session.request(
                method,
                info.server.rstrip("/") + path,
                params=params,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
            ) as answer:
                code = str(answer.status)
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = "0"
            raise errors.UnreachableError(asked, f"no answer ({type(error).__name__}: {error})") from error
        finally:
            if what:
                self._metrics.count(
                    "api_requests_total",
                    "Requests to the API server by verb, kind and HTTP status; 0: no answer.",
                    verb=verb,
                    kind=what,
                    code=code,
                )
        return self._answer(asked, answer.status, answer.headers, content)

    def _answer(self, asked: str, status: int, headers: Mapping[str, str], content: bytes) -> Object:
        try:
            value = json.loads(content) if content else {}
        except ValueError:
            value = None
        if status < 400 and isinstance(value, dict):
            return value
        if status == 401:
            self._read_at = 0.0
        said = value.get("message", "") if isinstance(value, dict) else content[:200].decode(errors="replace")
        retry_after_s = 0.0
        with contextlib.suppress(ValueError):
            retry_after_s = float(headers.get("Retry-After", "0"))
        kind = _CLASSES.get(status, errors.BusyError if status >= 500 else errors.RejectedError)
        if status < 400:
            kind = errors.UnreachableError  # half an answer, or somebody else's
        sentence = (str(said) or f"HTTP {status}")[:ANSWER_MAX_LETTERS]
        raise kind(asked, sentence, status=status, retry_after_s=retry_after_s)

    def _connected(self) -> tuple[aiohttp.ClientSession, kopf.ConnectionInfo]:
        now = time.monotonic()
        if self._info is None or now - self._read_at > CREDENTIALS_AGE_MAX_S:
            self._info = self._connect()
            self._read_at = now
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._info.as_ssl_context())
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session, self._info
