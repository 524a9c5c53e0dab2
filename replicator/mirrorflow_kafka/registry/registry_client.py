"""Sends requests to one schema registry: over a few open connections, with basic or bearer authentication, and TLS.

Properties are those of Confluent's clients, each with the prefix `schema.registry.`. References in them are resolved by `refresh`,
so that rotated secrets take effect. Redirects are not followed, because they would send a secret elsewhere. A request
whose connection is lost is repeated once: each of `registry_requests` may be.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import h11

from mirrorflow_core.errors import (
    InvalidSettingError,
    RegistryDeniedError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from mirrorflow_core.schemas.registry_requests import RegistryRequest
from mirrorflow_core.settings import REGISTRY_PREFIX, REGISTRY_URL_KEY, RegistrySettings
from mirrorflow_kafka.client.http_exchange import HttpResponse, exchange
from mirrorflow_kafka.security.tls import build_context, certificate_name, tls_problem

CONNECT_TIMEOUT_S: Final = 10.0
# A registry answers a write after its own write to Kafka, and a page of versions after it has read a large store.
RESPONSE_TIMEOUT_S: Final = 60.0
# A page of 1,000 schemas of 256 KiB, far larger than any registry admits.
RESPONSE_BYTES_MAX: Final = 256 << 20
# Settings of subjects are requested concurrently, and a registry serves other clients, too.
CONNECTIONS_MAX: Final = 4
MESSAGE_MAX: Final = 300  # characters of a registry's own error
USER_KEY: Final = f"{REGISTRY_PREFIX}basic.auth.user.info"
TOKEN_KEY: Final = f"{REGISTRY_PREFIX}bearer.auth.token"
_SSL: Final = f"{REGISTRY_PREFIX}ssl."
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
Resolve = Callable[[str, str], str]  # key and value -> resolved value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    url: SplitResult
    context: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]


class RegistryClient:
    """A client of the registry of *settings*. Its methods raise RegistryError; `close` ends its connections."""

    def __init__(self, settings: RegistrySettings, resolve: Resolve) -> None:
        self.alias = settings.alias
        self._settings = settings
        self._resolve = resolve
        self._properties: Mapping[str, str] = {}
        self._endpoints: tuple[_Endpoint, ...] = ()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    def refresh(self) -> None:
        """Resolves the references again. Raises SettingError."""
        resolved = {
            key: self._resolve(f"{self._settings.side}.cluster.{key}", value)
            for key, value in self._settings.properties.items()
        }
        if resolved != self._properties or not self._endpoints:
            self._endpoints = endpoints(resolved, self._settings.side)
            self._properties = resolved
            self.close()

    def close(self) -> None:
        """Closes the idle connections; the next request opens one."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.transport.abort()

    async def get(self, request: RegistryRequest) -> Any:
        """Returns the JSON of the response; None for 404."""
        status, value = await self._respond(request)
        return None if status == 404 else value

    async def send(self, request: RegistryRequest) -> Any:
        """Carries out a write and returns the JSON of the response."""
        return (await self._respond(request))[1]

    async def _respond(self, request: RegistryRequest) -> tuple[int, Any]:
        async with self._slots:
            response = await self._sent(request)
        value = _parsed(response.body)
        if response.status // 100 == 2 and value is None:
            raise self._unreachable(
                "its response is no JSON; check that the URL is that of a schema registry"
            )
        accepted = (*request.accepts, *((404,) if request.method == "GET" else ()))
        if response.status // 100 == 2 or response.status in accepted:
            return response.status, value
        fields = value if isinstance(value, dict) else {}
        message = " ".join(str(fields.get("message", "")).split())[:MESSAGE_MAX]
        if response.status in {401, 403}:
            raise RegistryDeniedError(registry=self.alias, request=_named(request), status=response.status)
        raise RegistryRefusedError(
            registry=self.alias, request=_named(request), status=response.status, message=message
        )

    async def _sent(self, request: RegistryRequest) -> HttpResponse:
        if not self._endpoints:
            self.refresh()
        problem = ""
        if self._idle:
            # It may have been closed since its last use.
            with suppress(RegistryUnreachableError):
                return await self._exchange(self._endpoints[0], request, self._idle.pop())
        for endpoint in self._endpoints:
            try:
                return await self._exchange(endpoint, request, await self._connect(endpoint))
            except RegistryUnreachableError as error:
                problem = error.problem
                # The first one that can be reached is used until it fails.
                self._endpoints = (*self._endpoints[1:], endpoint)
                self.close()
        raise self._unreachable(problem)

    async def _connect(self, endpoint: _Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url, context = endpoint.url, endpoint.context
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(
                    url.hostname,
                    url.port or (80 if context is None else 443),
                    ssl=context,
                    server_hostname=None if context is None else certificate_name(url.hostname),
                )
        except TimeoutError:
            raise self._unreachable(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            raise self._unreachable(tls_problem(error).replace("broker", "registry")) from None
        except OSError as error:
            raise self._unreachable(error.strerror or type(error).__name__) from None
        except UnicodeError:
            raise self._unreachable("its host name is not valid") from None

    async def _exchange(
        self,
        endpoint: _Endpoint,
        request: RegistryRequest,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> HttpResponse:
        body = b"" if request.body is None else json.dumps(request.body).encode()
        headers = [*endpoint.headers, ("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", _MEDIA_TYPE))
        head = h11.Request(
            method=request.method, target=endpoint.url.path.rstrip("/") + request.path, headers=headers
        )
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                response = await exchange(*connection, head, body, bytes_max=RESPONSE_BYTES_MAX)
        except TimeoutError:
            connection[1].transport.abort()
            raise self._unreachable(f"no response within {RESPONSE_TIMEOUT_S:g} s") from None
        except (OSError, h11.ProtocolError) as error:
            connection[1].transport.abort()
            raise self._unreachable(f"the connection was lost ({error or type(error).__name__})") from None
        except BaseException:
            # A cancelled request leaves its response in the connection.
            connection[1].transport.abort()
            raise
        if (b"connection", b"close") in {(name, value.lower()) for name, value in response.headers}:
            connection[1].transport.abort()
        else:
            self._idle.append(connection)
        return response

    def _unreachable(self, problem: str) -> RegistryUnreachableError:
        return RegistryUnreachableError(
            registry=self.alias,
            url=_shown(self._settings.properties.get(REGISTRY_URL_KEY, "")),
            problem=problem,
        )


def endpoints(properties: Mapping[str, str], side: str) -> tuple[_Endpoint, ...]:
    """Returns what each URL of resolved *properties* needs. Raises SettingError, which names the key with *side*."""
    own_tls = {
        key.removeprefix(REGISTRY_PREFIX): value for key, value in properties.items() if key.startswith(_SSL)
    }
    parsed = []
    for text in filter(None, map(str.strip, properties.get(REGISTRY_URL_KEY, "").split(","))):
        url = urlsplit(text)
        if url.scheme not in {"http", "https"} or not url.hostname or "@" in url.netloc or url.query:
            raise InvalidSettingError(
                key=f"{side}.cluster.{REGISTRY_URL_KEY}",
                problem="it is no URL of a registry",
                action="write https://host:port, and the user in schema.registry.basic.auth.user.info",
            )
        context = build_context(own_tls)[0] if url.scheme == "https" else None
        headers = (
            ("Host", url.netloc),
            ("Accept", f"{_MEDIA_TYPE}, application/json"),
            *_authorization(properties, side),
        )
        parsed.append(_Endpoint(url=url, context=context, headers=headers))
    if not parsed:
        raise InvalidSettingError(
            key=f"{side}.cluster.{REGISTRY_URL_KEY}",
            problem="it is missing",
            action="write https://host:port",
        )
    return tuple(parsed)


def _authorization(properties: Mapping[str, str], side: str) -> tuple[tuple[str, str], ...]:
    user, token = properties.get(USER_KEY, ""), properties.get(TOKEN_KEY, "")
    if user and token:
        raise InvalidSettingError(
            key=f"{side}.cluster.{TOKEN_KEY}",
            problem=f"it contradicts {USER_KEY}",
            action="write one of them",
        )
    if user and ":" not in user:
        raise InvalidSettingError(
            key=f"{side}.cluster.{USER_KEY}", problem="it has no colon", action="write user:password"
        )
    if user:
        return (("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}"),)
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidSettingError(
            key=f"{side}.cluster.{TOKEN_KEY}", problem="it has characters that no token has"
        )
    return (("Authorization", f"Bearer {token}"),) if token else ()


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # no JSON, or a nesting that Python refuses
        return None


def _named(request: RegistryRequest) -> str:
    return f"{request.method} {request.path.partition('?')[0]}"


def _shown(text: str) -> str:
    """Returns the URLs in *text* without user parts, which could hold a password."""
    return ", ".join(url.rpartition("@")[2] for url in text.split(","))
