"""Keeps the history of flows in a bounded SQLite database: samples of lag and rates, and events for the time line.

All rows are in one file, whose size is bounded by the number of rows. Samples are five seconds apart for an hour, then a
minute, for at most a week. The file holds no secret and no record, and may be deleted at any time.

A disk that is full, or a file that is damaged, costs history and nothing else: no method raises an error of the database.
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirrorflow_console.lag_forecast import LagSample

STEP_S: Final = 5  # as the poller, while a page of the flow is open
SAMPLE_STEP_S: Final = 30  # otherwise
FINE_S: Final = 3_600
COARSE_STEP_S: Final = 60
KEPT_S: Final = 7 * 86_400
# 60 bytes each, so about 60 MB: a week of 100 flows, or 16 hours of 1,000.
SAMPLES_MAX: Final = 1_000_000
TOPIC_LAGS_MAX: Final = 30_000  # 600 bytes each: half an hour of 1,000 flows
EVENTS_MAX: Final = 50_000
TOPICS_KEPT: Final = 20  # of a flow and moment, the worst: as many as its page shows
TOPIC_STEP_S: Final = 30
PRUNE_EVERY_S: Final = 60.0
EVENT_TEXT_MAX: Final = 500
EVENTS_READ: Final = 5_000  # for one page
EVENTS_OF_EACH: Final = 100  # flow on a page of several: a line of the week has room for 80 marks
_INTEGER_MAX: Final = (1 << 63) - 1

_LOG: Final = logging.getLogger(__name__)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sample (
    flow TEXT, at INTEGER, lag INTEGER, lag_s REAL, records REAL, bytes REAL, PRIMARY KEY (flow, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sample_at ON sample (at);
CREATE TABLE IF NOT EXISTS topic_lags (
    flow TEXT, at INTEGER, lags TEXT, PRIMARY KEY (flow, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS topic_lags_at ON topic_lags (at);
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, at INTEGER, flow TEXT, kind TEXT, level INTEGER, text TEXT
);
CREATE INDEX IF NOT EXISTS event_at ON event (at);
CREATE INDEX IF NOT EXISTS event_flow ON event (flow, at);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """Something that happened to a flow; *level* as `flow_views.Level`."""

    at_s: float
    flow: str
    kind: str
    level: int
    text: str


class History:
    """The database at *path*, in memory if None. Its methods may be called from any thread."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._pruned_s = 0.0
        self._failure = ""  # until a moment can be stored
        self._connection, self._loss = _opened(path)

    @property
    def problem(self) -> str:
        """Why something of the history is missing, or will be; "" if nothing is."""
        return self._failure or self._loss

    def add(
        self,
        samples: Mapping[str, LagSample],
        topics: Mapping[str, Sequence[tuple[str, int | None]]],
        events: Iterable[HistoryEvent],
        now_s: float,
    ) -> None:
        """Adds one moment: the sample of each flow, the lags of its worst topics, and what has happened since the last one.

        A moment that cannot be stored is missing.
        """
        with self._access(), self._connection as database:
            database.executemany(
                "INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (
                        flow,
                        _rounded(sample.at_s, STEP_S),
                        _stored(sample.records),
                        sample.seconds,
                        sample.records_per_s,
                        sample.bytes_per_s,
                    )
                    for flow, sample in samples.items()
                ),
            )
            database.executemany(
                # One row of JSON for all topics of a flow: a row for each would take four times as long.
                "INSERT OR IGNORE INTO topic_lags VALUES (?, ?, ?)",
                (
                    (flow, _rounded(now_s, TOPIC_STEP_S), json.dumps(rows[:TOPICS_KEPT]))
                    for flow, rows in topics.items()
                ),
            )
            database.executemany(
                # A console that starts again finds the dated events of the status again.
                "INSERT INTO event (at, flow, kind, level, text) SELECT ?1, ?2, ?3, ?4, ?5"
                " WHERE NOT EXISTS (SELECT 1 FROM event WHERE at = ?1 AND flow = ?2 AND kind = ?3 AND text = ?5)",
                (
                    (int(event.at_s), event.flow, event.kind, event.level, event.text[:EVENT_TEXT_MAX])
                    for event in events
                ),
            )
            if now_s - self._pruned_s >= PRUNE_EVERY_S:
                self._pruned_s = now_s
                _prune(database, now_s)
            self._failure = ""

    def samples(self, flow: str, since_s: float) -> list[LagSample]:
        """Returns the samples of *flow* since a moment, oldest first."""
        rows = self._rows(
            "SELECT at, lag, lag_s, records, bytes FROM sample WHERE flow = ? AND at >= ? ORDER BY at",
            (flow, int(since_s)),
        )
        return [LagSample(*row) for row in rows]

    def topic_lags(self, flow: str, since_s: float) -> dict[str, list[tuple[int, int | None]]]:
        """Returns time and lag of each topic of *flow* since a moment, oldest first."""
        lags: dict[str, list[tuple[int, int | None]]] = {}
        for topic, at_s, lag in self._rows(
            "SELECT json_extract(row.value, '$[0]'), at, json_extract(row.value, '$[1]')"
            " FROM topic_lags, json_each(lags) AS row WHERE flow = ? AND at >= ? ORDER BY at",
            (flow, int(since_s)),
        ):
            lags.setdefault(topic, []).append((at_s, lag))
        return lags

    def events(
        self,
        since_s: float,
        *,
        flows: Iterable[str] | None = None,
        limit: int = EVENTS_READ,
        of_each: int = EVENTS_OF_EACH,
    ) -> list[HistoryEvent]:
        """Returns the newest events since a moment, newest first: of *flows*, None: of all, and *of_each* flow only so many.

        Without that limit, a flow whose state changes all the time would hide all others.
        """
        rows = self._rows(
            "SELECT at, flow, kind, level, text FROM ("
            "SELECT *, row_number() OVER (PARTITION BY flow ORDER BY at DESC, id DESC) AS number FROM event"
            " WHERE at >= ?1 AND (?2 IS NULL OR flow IN (SELECT value FROM json_each(?2)))"
            ") WHERE number <= ?3 ORDER BY at DESC, id DESC LIMIT ?4",
            (int(since_s), None if flows is None else json.dumps([*flows]), of_each, limit),
        )
        return [
            HistoryEvent(at_s=at_s, flow=name, kind=kind, level=level, text=text)
            for at_s, name, kind, level, text in rows
        ]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._access():
            return self._connection.execute(query, values).fetchall()
        return []

    @contextmanager
    def _access(self) -> Iterator[None]:
        """Locks the database, and notes an error of it. A damaged one is replaced by an empty one in memory."""
        with self._lock:
            try:
                yield
            except sqlite3.DatabaseError as error:
                failure = f"The history cannot be read or written now: {error}."
                if failure != self._failure:
                    _LOG.warning("%s", failure)
                self._failure = failure
                if _is_damage(error):
                    self._failure, self._loss = "", f"The history is in memory only: {error}."
                    with suppress(sqlite3.Error):
                        self._connection.close()
                    self._connection = _open(None)


def _opened(path: Path | None) -> tuple[sqlite3.Connection, str]:
    """Returns the database, and why it is not in the file *path*; "" if it is. A damaged file is replaced."""
    try:
        try:
            return _open(path), ""
        except sqlite3.DatabaseError as error:
            if path is None or not _is_damage(error):
                raise
            _LOG.warning("The history in %s begins again: %s", path, error)
            for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                file.unlink(missing_ok=True)
            return _open(path), ""
    except (OSError, sqlite3.Error) as error:
        _LOG.warning("The history is in memory only: %s", error)
        return _open(None), f"The history is in memory only: {error}."


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is no database, or no longer. Subclasses report what passes: a full disk, or a lock of another process."""
    return type(error) is sqlite3.DatabaseError


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    connection = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=5.0)
    # A lost file costs a week of history: no commit waits for the disk.
    connection.executescript(
        f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -4000; {_SCHEMA}"
    )
    return connection


def _stored(lag: int | None) -> int | None:
    """Returns *lag* within SQLite's 64 bits: the sum of several pods may be more."""
    return None if lag is None else max(-_INTEGER_MAX, min(lag, _INTEGER_MAX))


def _rounded(at_s: float, step_s: int) -> int:
    return int(at_s) // step_s * step_s


def _prune(database: sqlite3.Connection, now_s: float) -> None:
    database.execute("DELETE FROM sample WHERE at < ?", (int(now_s - KEPT_S),))
    # Only the minute that has just left the fine hour, and what an earlier process left there.
    database.execute(
        "DELETE FROM sample WHERE at < ? AND at % ? >= ?", (int(now_s - FINE_S), COARSE_STEP_S, STEP_S)
    )
    database.execute("DELETE FROM topic_lags WHERE at < ?", (int(now_s - FINE_S),))
    database.execute("DELETE FROM event WHERE at < ?", (int(now_s - KEPT_S),))
    for table, most in (("sample", SAMPLES_MAX), ("topic_lags", TOPIC_LAGS_MAX), ("event", EVENTS_MAX)):
        (rows,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  a name of ours
        if rows > most:
            oldest = f"SELECT at FROM {table} ORDER BY at LIMIT 1 OFFSET ?"  # noqa: S608
            database.execute(f"DELETE FROM {table} WHERE at <= ({oldest})", (rows - most,))  # noqa: S608
