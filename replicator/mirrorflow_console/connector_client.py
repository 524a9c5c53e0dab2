"""Requests a connector's progress over HTTP, bounded in bytes and time, for both forms of the console."""

import http.client
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from mirrorflow_console.documents import (
    BODY_MAX_BYTES,
    OFFSETS_MAX,
    PARTITIONS_MAX,
    ConnectorDocument,
    DocumentError,
    connector_document,
    group_offsets,
    parse_json,
)

SILENCE_MAX_S: Final = (
    2.0  # between two pieces of an answer; a replicator's event loop never blocks for one second
)
ANSWER_MAX_S: Final = 8.0  # a slow connector delays no page: threads read side by side
_PIECE_BYTES: Final = 256 * 1024
# Most flows have fewer. The greatest lags come first, so trouble with lag is among them.
PARTITIONS_USUAL: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorAddress:
    """The HTTP address of a connector. *context*: TLS, with the name of the certificate in *host_name*."""

    host: str
    port: int
    connector: str = ""  # where its process runs several flows
    context: ssl.SSLContext | None = None
    host_name: str = ""


def request_document(address: ConnectorAddress, *, is_detailed: bool) -> ConnectorDocument:
    """Returns what a connector reports about its flow. Raises DocumentError with the reason as words."""
    limit = PARTITIONS_MAX if is_detailed else PARTITIONS_USUAL
    return connector_document(_get(address, "/progress/partitions", {"limit": str(limit)}))


def request_group_offsets(address: ConnectorAddress) -> tuple[tuple[Any, ...], bool]:
    """Returns the offsets of consumer groups, and whether there are more. Raises DocumentError."""
    return group_offsets(_get(address, "/offsets", {"limit": str(OFFSETS_MAX)}))


def _get(address: ConnectorAddress, path: str, query: dict[str, str]) -> Any:
    if address.connector:
        query = {**query, "connector": address.connector}
    connection = _connection(address)
    try:
        connection.request("GET", f"{path}?{urlencode(query)}", headers={"User-Agent": "mirrorflow-console"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise DocumentError(f"it answers with HTTP status {response.status}")
        return parse_json(_body(response))
    except ssl.SSLError:
        raise DocumentError("TLS certificate verification failed") from None
    except TimeoutError:
        raise DocumentError(f"it does not answer within {SILENCE_MAX_S:g} s") from None
    except OSError as error:
        raise DocumentError(f"the connection fails ({error.strerror or type(error).__name__})") from None
    except http.client.HTTPException:
        raise DocumentError("invalid HTTP response") from None
    finally:
        connection.close()


def _connection(address: ConnectorAddress) -> http.client.HTTPConnection:
    if address.context is None:
        return http.client.HTTPConnection(address.host, address.port, timeout=SILENCE_MAX_S)
    return _NamedConnection(address)


class _NamedConnection(http.client.HTTPSConnection):
    """Connects to an IP address, and verifies the certificate of a name."""

    def __init__(self, address: ConnectorAddress) -> None:
        super().__init__(address.host, address.port, timeout=SILENCE_MAX_S, context=address.context)
        self._address = address

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        if self._address.context is not None:
            self.sock = self._address.context.wrap_socket(self.sock, server_hostname=self._address.host_name)


def _body(response: http.client.HTTPResponse) -> bytes:
    """Returns the body. Raises DocumentError where it is too long, or comes too slowly."""
    deadline_s = time.monotonic() + ANSWER_MAX_S
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > BODY_MAX_BYTES:
            raise DocumentError(f"the answer has more than {BODY_MAX_BYTES // 1024 // 1024} MiB")
        if time.monotonic() > deadline_s:
            raise DocumentError(f"the answer takes more than {ANSWER_MAX_S:g} s")
    return bytes(body)
