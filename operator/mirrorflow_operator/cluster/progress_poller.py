"""Polls each pod's progress about every `interval_s`, and sooner while it is starting or cannot be read.

    poller = Poller(changed=queue.add)
    poller.put(key, [ScrapeTarget(uid=..., host=...)])   # the flow's pods; cheap if they have not changed
    poller.reading(uid)                                  # the pod's last reading, None before the first
    poller.reading(uid, "MirrorCheckpointConnector")     # the same for one of several connectors in the pod
    await poller.run()                                   # until cancelled

`changed(key)` is called only when a reading may change the flow's status: `reading_digest` reduces figures to the
comparisons that the assessment makes, with the same limits, so a figure that moves within its bucket causes
no pass. Polls are spread over the interval at random, so that after a restart the operator does not poll three
thousand pods in the same second of each interval. The number of polls in flight is limited, and large enough
that pods which do not answer cannot delay those that do.

A pod is polled for each connector that it runs, by the connector's name where it runs several. A pod without
an address, not running or terminating is not polled. One poll is a `GET /progress`, over HTTP or verified TLS.
A pod is trusted only for its own flow: the response is bounded in bytes and in time, no redirect is followed,
nothing is decompressed, and no proxy or cookie is used. Each request opens a connection: that costs 0.4 ms of
CPU time, against 0.16 ms on an open one, but 3,000 open connections would cost 20 MB, and a socket in each
pod.
"""

import asyncio
import heapq
import itertools
import logging
import random
import ssl
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from mirrorflow_core.backoff import backoff_s
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.jobs import PROGRESS_PORT
from mirrorflow_operator.plan.pod import HTTP_PORT
from mirrorflow_operator.status import pod_progress
from mirrorflow_operator.status.admission import Key
from mirrorflow_operator.status.observation import PodSeen
from mirrorflow_operator.status.progress import (
    BODY_MAX_BYTES,
    Checkpoints,
    Reading,
    Replicating,
    SideReachability,
    SideSummary,
    Unread,
    read_summary,
    unread_reading,
)
from mirrorflow_operator.status.replication import stale_after_s

PATH: Final = "/progress"
# A pod is in the same cluster; TCP repeats a lost handshake packet after one second
CONNECT_MAX_S: Final = 2.0
# A replicator renders its summary within milliseconds; its event loop never blocks for one second
ANSWER_MAX_S: Final = 4.0
HEAD_LINE_MAX_BYTES: Final = 2_048  # a replicator sends a few short header lines
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "mirrorflow-operator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """TLS parameters: *context* holds the trusted CAs, *name* is the host name the certificate must match."""

    context: ssl.SSLContext
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """The address of one pod's progress endpoint. *tls* is None for plain HTTP."""

    uid: str
    host: str  # an IP address, so no DNS lookup is needed
    ready: bool = False  # the pod's readiness; a change makes the poller poll the pod soon
    port: int = HTTP_PORT
    connector: str = ""  # the connector's name where the pod runs several; "" for the only one
    tls: Verified | None = None


def session() -> aiohttp.ClientSession:
    """Returns the HTTP session for all calls of `ask`.

    Create it inside the running event loop, and close it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),  # the poller limits the requests in flight
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(total=ANSWER_MAX_S, sock_connect=CONNECT_MAX_S),
        read_bufsize=BODY_MAX_BYTES,
        max_line_size=HEAD_LINE_MAX_BYTES,
        max_field_size=HEAD_LINE_MAX_BYTES,
    )


async def ask(client: aiohttp.ClientSession, place: ScrapeTarget, *, now_s: float) -> Reading:
    """Requests the progress of the pod at *place*; the Reading is stamped with *now_s* (wall clock)."""
    url = URL.build(
        scheme="http" if place.tls is None else "https",
        host=place.host,
        port=place.port,
        path=PATH,
        query={"connector": place.connector} if place.connector else {},
    )
    try:
        async with client.get(
            url,
            allow_redirects=False,
            ssl=True if place.tls is None else place.tls.context,
            server_hostname=None if place.tls is None else place.tls.name,
        ) as answer:
            if answer.status != 200:
                return unread_reading(now_s, Unread.REFUSED, f"it answers with HTTP status {answer.status}")
            return read_summary(await _body(answer.content), read_at_s=now_s)
    except TimeoutError:
        return unread_reading(
            now_s, Unread.UNREACHABLE, f"it does not answer within {ANSWER_MAX_S:g} seconds"
        )
    except (aiohttp.ClientSSLError, ssl.CertificateError):
        return unread_reading(now_s, Unread.REFUSED, "TLS certificate verification failed")
    except (OSError, aiohttp.ServerDisconnectedError):
        return unread_reading(now_s, Unread.UNREACHABLE, "the connection fails")
    except (aiohttp.ClientError, ValueError):
        return unread_reading(now_s, Unread.UNREADABLE, "invalid HTTP response")


async def _body(content: aiohttp.StreamReader) -> bytes:
    """Returns the whole body, or BODY_MAX_BYTES + 1 bytes of a longer one."""
    body = b""
    while len(body) <= BODY_MAX_BYTES and (part := await content.read(BODY_MAX_BYTES + 1 - len(body))):
        body += part
    return body


log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Authorities:
    """The CA certificates of *file* (PEM).

    Raises SettingsError where the file cannot be read at the start.
    """

    file: str
    _context: ssl.SSLContext = field(init=False)
    _seen: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._seen = self._look()
            self._context = _tls_context(self.file)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(
                "MIRRORFLOW_PROGRESS_CA", self.file, f"set it to a PEM file of CA certificates ({error})"
            ) from error

    def verified(self, name: str) -> Verified:
        """Returns the TLS parameters to poll a pod with a certificate for *name*; reloads a changed file."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen  # before loading, so that a broken file is tried only once
                self._context = _tls_context(self.file)
        except OSError as error:
            log.warning("Keeping the previous CA certificates of connectors: %s: %s", self.file, error)
        return Verified(context=self._context, name=name)

    def _look(self) -> tuple[int, int, int]:
        found = Path(self.file).stat()
        return found.st_mtime_ns, found.st_ino, found.st_size


def _tls_context(file: str) -> ssl.SSLContext:
    # Not create_default_context: since Python 3.13 it is strict and refuses CAs without a key identifier,
    # which many private CAs lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    return context


def scrape_targets(
    key: Key,
    pods: Iterable[tuple[str, PodSeen]],
    drivers: Iterable[tuple[str, PodSeen]],
    *,
    wanted: Mapping[ConnectorKind, str],
    authorities: Authorities | None,
) -> list[ScrapeTarget]:
    """Returns the targets among the connectors' *pods* and the Spark *drivers*.

    *pods*: each with the connector of its Deployment, as `ConnectorKind` names it. *wanted*: the names of the
    flow's connectors. Without *authorities* no pod is polled over TLS.
    """
    connectors = [
        ScrapeTarget(
            uid=pod.uid,
            host=pod.ip,
            ready=pod.ready,
            connector=name_in(pod, one, wanted),
            tls=_verified(key, word, pod, authorities),
        )
        for word, pod in pods
        if _answers(pod)
        for one in pod.connectors
    ]
    jobs = [
        ScrapeTarget(uid=pod.uid, host=pod.ip, ready=pod.ready, port=PROGRESS_PORT)
        for _, pod in drivers
        if _answers(pod)
    ]
    return connectors + jobs


def name_in(pod: PodSeen, word: str, wanted: Mapping[ConnectorKind, str]) -> str:
    """Returns the name by which *pod* is polled for the connector *word*; "" where the pod runs only one."""
    if len(pod.connectors) < 2:
        return ""
    kind = next((one for one in ConnectorKind if one.value == word), None)
    return "" if kind is None else wanted.get(kind, kind.java_class)


def _answers(pod: PodSeen) -> bool:
    return bool(pod.ip) and pod.phase == "Running" and not pod.deleting


def _verified(key: Key, word: str, pod: PodSeen, authorities: Authorities | None) -> Verified | None:
    if not pod.is_secure or authorities is None:
        return None
    namespace, flow = key
    return authorities.verified(names.pod_host(flow, namespace, word))


def reading_digest(reading: Reading) -> Hashable:
    """Returns the digest of *reading*; equal for readings that lead to the same assessment."""
    summary = reading.summary
    if reading.report is not None:
        return reading.report  # a job is finite, and the status shows its figures
    if summary is None:
        return reading.unread
    done, long_s = summary.checkpoints, stale_after_s(summary.checkpoints)
    figures = replace(
        summary,
        uptime_s=0.0,
        partitions_stopped=min(summary.partitions_stopped, 1),
        partitions_stalled=min(summary.partitions_stalled, 1),
        lag_records=min(summary.lag_records, 1),
        lags_unknown=min(summary.lags_unknown, 1),
        lag_s=None,
        records_per_s=0.0,
        reasons=tuple(sorted(summary.reasons)),
        source=_digest_of_side(summary.source),
        target=_digest_of_side(summary.target),
        checkpoints=None if done is None else _digest_of_checkpoints(done, long_s),
    )
    ages = pod_progress.is_young(summary), summary.uptime_s > long_s
    return figures, pod_progress.bucket(summary), summary.records_per_s > 0, ages


def _digest_of_side(side: SideSummary) -> SideSummary:
    if side.reach is not SideReachability.UNREACHABLE or side.since_s is None:
        return replace(side, since_s=None)
    return replace(side, since_s=None if side.since_s >= pod_progress.UNREACHABLE_AFTER_S else 0.0)


def _digest_of_checkpoints(done: Checkpoints, long_s: float) -> Checkpoints:
    age_s = None if done.age_s is None else float(done.age_s > long_s)
    return replace(done, groups=0, failing=min(done.failing, 1), age_s=age_s)


_TargetId = tuple[str, str]  # the pod's uid, and the connector's name where the pod runs several

INTERVAL_S: Final = 30.0
JITTER: Final = 0.1  # of the interval, in both directions; three polls end within `observation.FRESH_S`
# A new or unreadable pod is polled after 2, 4, 8 and 16 seconds, then at the normal interval.
EAGER_PART: Final = 1 / 15
_EAGER_MAX: Final = 5  # 2 ** 4 > 15: from here on the wait is the normal interval
# Pods due within 0.25 s of one another are polled together: the loop wakes once for 25 pods of 3,000.
TICK_PART: Final = 1 / 120
# At the operator's start, 3,000 pods are first polled within six seconds, at a fifth of a core.
FIRST_PER_S: Final = 500
# If no pod answers within 4 s, 256 at once still poll 3,000 pods in 47 s; each takes a socket and some 20 kB.
AT_ONCE_MAX: Final = 256


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """One pod, or one of its connectors: its last reading, and when it is polled next (the loop's clock)."""

    key: Key
    place: ScrapeTarget
    due_s: float = 0.0
    eager: int = 0  # polls since the target was added or changed, while starting; _EAGER_MAX once settled
    asking: bool = False
    reading: Reading | None = None
    digest: Hashable = None  # the `digest_of` `reading`


@dataclass(slots=True, kw_only=True)
class Poller:
    """Schedules and runs the polls of all flows' pods.

    `digest_of` returns a reading's digest; readings with equal digests do not change the flow's status.
    """

    changed: Callable[[Key], None]
    metrics: Metrics = field(default_factory=Metrics)
    digest_of: Callable[[Reading], Hashable] = reading_digest
    interval_s: float = INTERVAL_S
    at_once: int = AT_ONCE_MAX
    wall_s: Callable[[], float] = time.time
    _entries: dict[_TargetId, _Entry] = field(default_factory=dict)
    _of_flow: dict[Key, tuple[ScrapeTarget, ...]] = field(default_factory=dict)
    _heap: list[tuple[float, int, _Entry]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Returns the number of targets: each pod once for every connector that is polled in it."""
        return len(self._entries)

    def put(self, key: Key, places: Iterable[ScrapeTarget]) -> None:
        """Sets the targets of the flow *key*; targets that are not in *places* are removed."""
        wanted = tuple(places)
        before = self._of_flow.get(key, ())
        if wanted == before:
            return
        for gone in set(map(_target_id, before)) - set(map(_target_id, wanted)):
            del self._entries[gone]
        for place in wanted:
            entry = self._entries.get(_target_id(place))
            if entry is None:
                self._entries[_target_id(place)] = entry = _Entry(key=key, place=place)
            elif entry.place == place:
                continue
            entry.place = place
            entry.eager = 0
            self._schedule(entry)
        if wanted:
            self._of_flow[key] = wanted
        else:
            self._of_flow.pop(key, None)

    def remove(self, key: Key) -> None:
        self.put(key, ())

    def reading(self, uid: str, connector: str = "") -> Reading | None:
        """Returns the pod's last reading, of *connector* where it runs several; None before a first poll."""
        entry = self._entries.get((uid, connector))
        return None if entry is None else entry.reading

    async def run(self) -> None:
        """Polls until cancelled; polls in flight are cancelled with it."""
        slots = asyncio.Semaphore(self.at_once)
        async with session() as client, asyncio.TaskGroup() as questions:
            while True:
                entry = await self._next()
                await slots.acquire()
                entry.asking = True
                question = questions.create_task(self._ask(client, entry))
                question.add_done_callback(lambda _: slots.release())

    async def _next(self) -> _Entry:
        """Waits until an entry is due; returns the one that has been due longest."""
        loop = asyncio.get_running_loop()
        tick_s = self.interval_s * TICK_PART
        while True:
            while self._heap:
                due_s, _, entry = self._heap[0]
                is_current = self._entries.get(_target_id(entry.place)) is entry and entry.due_s == due_s
                if is_current and due_s > loop.time():
                    break
                heapq.heappop(self._heap)
                if is_current and not entry.asking:
                    return entry
            self._wake.clear()
            wait_s = max(tick_s, self._heap[0][0] - loop.time()) if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self, client: aiohttp.ClientSession, entry: _Entry) -> None:
        place = entry.place
        try:
            reading = await ask(client, place, now_s=self.wall_s())
        finally:
            entry.asking = False
        self.metrics.polls.inc()
        if reading.unread is not None:
            self.metrics.polls_failed.inc()
        if self._entries.get(_target_id(place)) is not entry:
            return  # the target was removed during the poll
        entry.reading = reading
        entry.eager = entry.eager + 1 if _is_unsettled(reading) else _EAGER_MAX
        self._schedule(entry)
        digest = self.digest_of(reading)
        if digest != entry.digest:
            entry.digest = digest
            log.debug("a pod of %s reports a change: %s", entry.key, reading)
            self.changed(entry.key)

    def _schedule(self, entry: _Entry) -> None:
        """Schedules the next poll: soon for a new or starting pod, after about one interval for others."""
        soon_s = self.interval_s * EAGER_PART
        if entry.eager == 0:
            wait_s = random.uniform(0, max(soon_s, len(self) / FIRST_PER_S))  # noqa: S311  it spreads the polls
        else:
            wait_s = backoff_s(entry.eager, lowest_s=soon_s, highest_s=self.interval_s, jitter=JITTER)
        loop = asyncio.get_running_loop()
        entry.due_s = loop.time() + wait_s
        heapq.heappush(self._heap, (entry.due_s, next(self._order), entry))
        self._wake.set()


def _target_id(place: ScrapeTarget) -> _TargetId:
    return place.uid, place.connector


def _is_unsettled(reading: Reading) -> bool:
    if reading.report is not None:
        return False
    return reading.summary is None or reading.summary.replicating is Replicating.WAITING
