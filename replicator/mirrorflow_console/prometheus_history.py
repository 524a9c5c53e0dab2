"""Reads the lag and throughput of a flow over an hour, a day or a week from Prometheus, where one scrapes the connectors.

Its metrics are those of docs/metrics.md. A flow is found by its labels `flow`, `source` and `target`, in a cluster also by
`namespace`, so that a visitor never sees figures of a namespace of others.
"""

import errno
import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from mirrorflow_console.documents import DocumentError, parse_json
from mirrorflow_console.lag_forecast import LagSample

POINTS: Final = 180  # as many as a chart has
STEP_MIN_S: Final = 15.0
RATE_MIN_S: Final = 120.0  # at least two scrapes, which are up to a minute apart
TIMEOUT_S: Final = (
    5.0  # from the beginning of a connection to the end of the response, however steadily bytes arrive
)
BODY_MAX_BYTES: Final = 1024 * 1024  # four series of 180 points have 20 KB
_REFUSALS: Final = frozenset({400, 422})  # of one query, by Prometheus' API
_SERIES: Final = (
    "sum(mirrorflow_record_lag{{{labels}}})",
    "max(mirrorflow_lag_seconds{{{labels}}})",
    "sum(rate(mirrorflow_records_total{{{labels}}}[{rate_s}s]))",
    "sum(rate(mirrorflow_bytes_total{{{labels}}}[{rate_s}s]))",
)


class PrometheusError(Exception):
    """Prometheus does not answer, or not as its API does. The text is a reason, part of a sentence."""


class PrometheusRefusalError(PrometheusError):
    """Prometheus answers, and refuses this query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLabels:
    """The labels of a flow's metrics; *namespace* "" on a laptop."""

    flow: str
    source: str
    target: str
    namespace: str = ""

    @property
    def matchers(self) -> str:
        """The labels as matchers of PromQL, whose strings are quoted as JSON's, but for surrogate pairs."""
        given = {"flow": self.flow, "source": self.source, "target": self.target, "namespace": self.namespace}
        return ",".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items() if value
        )


class PrometheusHistory:
    """Queries the Prometheus at *url*, such as http://prometheus:9090. Raises ValueError if it is no such address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"{url} is not an address such as http://prometheus:9090")
        self._parts = parts
        self._port = parts.port  # raises ValueError
        self.host = parts.hostname

    def samples(self, labels: FlowLabels, span_s: float, now_s: float) -> list[LagSample]:
        """Returns the samples of the last *span_s*, oldest first. Raises PrometheusError."""
        step_s = max(STEP_MIN_S, math.ceil(span_s / POINTS))
        end_s = now_s // step_s * step_s
        rate_s = int(max(RATE_MIN_S, 2 * step_s))
        series = [
            self._series(
                {
                    "query": query.format(labels=labels.matchers, rate_s=rate_s),
                    "start": end_s - span_s,
                    "end": end_s,
                    "step": step_s,
                }
            )
            for query in _SERIES
        ]
        records, seconds, record_rates, byte_rates = series
        return [
            LagSample(
                at_s,
                None if (lag := records.get(at_s)) is None else int(lag),
                seconds.get(at_s),
                record_rates.get(at_s, 0.0),
                byte_rates.get(at_s, 0.0),
            )
            for at_s in sorted(records.keys() | record_rates.keys())
        ]

    def _series(self, query: Mapping[str, object]) -> dict[float, float]:
        """Returns the values of a range query by their times; none if nothing has been scraped."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.host, self._port, timeout=TIMEOUT_S)
        path = f"{self._parts.path.rstrip('/')}/api/v1/query_range?{urlencode(query)}"
        until_s = time.monotonic() + TIMEOUT_S
        try:
            connection.connect()  # at most TIMEOUT_S for each address of the host, and for TLS
            with _ended_at(connection.sock, until_s):
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read(BODY_MAX_BYTES)
        except OSError as error:
            raise PrometheusError(error.strerror or type(error).__name__) from None
        except http.client.HTTPException:
            raise PrometheusError("invalid HTTP response") from None
        finally:
            connection.close()
        if response.status in _REFUSALS:
            raise PrometheusRefusalError(f"HTTP status {response.status}")
        if response.status != http.client.OK:
            raise PrometheusError(f"HTTP status {response.status}")
        return _values(body)


@contextmanager
def _ended_at(connected: socket.socket, until_s: float) -> Iterator[None]:
    """Shuts *connected* down at *until_s* of the monotonic clock; raises TimeoutError if it had to, or if that time is over.

    A socket's own timeout begins again with each byte.
    """
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise _no_response()
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(left_s, end)
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise _no_response()


def _no_response() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"no whole response within {TIMEOUT_S:g} s")


def _values(body: bytes) -> dict[float, float]:
    """Returns the values of the only series in a response of the API. Raises PrometheusError."""
    try:
        document: Any = parse_json(body)
        series = document["data"]["result"]
        points = series[0]["values"] if series else []
        by_time = {float(at_s): float(value) for at_s, value in points}
    except (DocumentError, LookupError, TypeError, ValueError):
        raise PrometheusError("it is not the API of Prometheus") from None
    return {at_s: value for at_s, value in by_time.items() if math.isfinite(value)}
