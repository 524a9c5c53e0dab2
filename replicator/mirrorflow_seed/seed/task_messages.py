"""The HTTP messages between the driver and running tasks: tasks send progress and receive instructions.

Once a second a task posts its progress; the response says whether to stop and how fast to copy. Correctness
does not depend on it: a task that cannot reach the driver keeps its last instructions, and the driver reads
offsets from the target. Messages identify partitions by their index in the plan.
"""

import json
import secrets
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ASK_EVERY_S: Final = 1.0
ASK_TIMEOUT_S: Final = 3.0
# A task that has not reported for this long no longer gets a part of the rate; tasks report every second.
SILENT_S: Final = 15.0
BODY_BYTES_MAX: Final = 1 << 20  # 200 partitions take some 10 kB
MESSAGE_CHARACTERS_MAX: Final = 2_000  # of an error: one sentence and the broker's message


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Instructions of the driver for one task."""

    stop: bool = False
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The progress of one task attempt; counts are since it began. `next_offsets` are by index of the share.

    `reason` and `message` describe an error that holds it up, "" if none does; the message may name topics.
    """

    attempt: str
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    ended: bool = False
    reason: str = ""
    message: str = ""


class Desk:
    """The driver's side: receives reports and answers with instructions. Each attempt is counted once."""

    def __init__(self, *, bytes_per_second: int | None) -> None:
        self.stop = False
        self.next_offsets: dict[int, int] = {}
        self.path = f"/orders/{secrets.token_hex(16)}"  # unguessable, so that only tasks of this job can post
        self._bytes_per_second = bytes_per_second
        self._words: dict[str, tuple[float, Word]] = {}
        self._ended: set[str] = set()
        self._records = self._bytes = 0
        self._seconds = 0.0

    def answer(self, body: bytes) -> bytes:
        """Returns the instructions for the task that sent *body*.

        Raises ValueError, KeyError, TypeError or AttributeError if *body* is not such a message.
        """
        said = json.loads(body)
        word = Word(
            attempt=str(said["attempt"]),
            records=int(said["records"]),
            bytes=int(said["bytes"]),
            seconds=float(said["seconds"]),
            next_offsets={int(index): int(offset) for index, offset in said["next"].items()},
            ended=bool(said["ended"]),
            reason=str(said["reason"]),
            message=str(said["message"]),
        )
        self.hear(word)
        return json.dumps({"stop": self.stop, "bytesPerSecond": self.share}).encode()

    def hear(self, word: Word) -> None:
        """Stores *word* as the latest report of its attempt."""
        for index, offset in word.next_offsets.items():
            self.next_offsets[index] = max(offset, self.next_offsets.get(index, -1))
        if word.attempt in self._ended:
            return
        if not word.ended:
            self._words[word.attempt] = (time.monotonic(), word)
            return
        self._words.pop(word.attempt, None)
        self._ended.add(word.attempt)
        self._records += word.records
        self._bytes += word.bytes
        self._seconds += word.seconds

    @property
    def active(self) -> int:
        """Number of attempts that have reported recently."""
        now_s = time.monotonic()
        return sum(now_s - at_s < SILENT_S for at_s, _ in list(self._words.values()))

    @property
    def unended(self) -> int:
        """Number of attempts that have not reported their end; once no task runs, these were killed."""
        return len(self._words)

    @property
    def troubles(self) -> dict[str, tuple[int, str]]:
        """By reason: the number of active attempts that it holds up, and the message of one of them."""
        now_s = time.monotonic()
        found: dict[str, tuple[int, str]] = {}
        for at_s, word in list(self._words.values()):
            if word.reason and now_s - at_s < SILENT_S:
                found[word.reason] = (found.get(word.reason, (0, ""))[0] + 1, word.message)
        return found

    @property
    def share(self) -> int | None:
        """Bytes per second for one task; None without a limit."""
        if self._bytes_per_second is None:
            return None
        return max(1, self._bytes_per_second // max(1, self.active))

    @property
    def totals(self) -> tuple[int, int, float]:
        """Records, bytes and seconds of all attempts so far."""
        words = [word for _, word in list(self._words.values())]
        return (
            self._records + sum(word.records for word in words),
            self._bytes + sum(word.bytes for word in words),
            self._seconds + sum(word.seconds for word in words),
        )


def ask(url: str, word: Word) -> Orders | None:
    """Posts *word* to the driver at *url* and returns its instructions; None if it cannot be reached.

    Blocks for a few seconds at most.
    """
    body: dict[str, Any] = {
        "attempt": word.attempt,
        "records": word.records,
        "bytes": word.bytes,
        "seconds": word.seconds,
        "next": dict(word.next_offsets),
        "ended": word.ended,
        "reason": word.reason,
        "message": word.message[:MESSAGE_CHARACTERS_MAX],
    }
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")  # noqa: S310 http, our driver
    try:
        with _DIRECT.open(request, timeout=ASK_TIMEOUT_S) as answer:
            said = json.loads(answer.read(BODY_BYTES_MAX))
            return Orders(stop=bool(said["stop"]), bytes_per_second=said["bytesPerSecond"])
    except (OSError, ValueError, KeyError):
        return None


# Ignores proxies of the environment: the driver is reached directly.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
