"""Book-keeping of an incremental fetch session (KIP-227): the broker remembers the partitions, we send what changed.

So ten thousand idle partitions cost nothing. Promises: after any error or loss the next request is a full one; a
partition is never believed to be in the session that the broker does not have there.
"""

from dataclasses import dataclass

from mirrorflow_replicator.wire.fetch import FetchFrom, FetchKey

FULL = 0  # the epoch that opens a session
_EPOCH_MAX = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What the next fetch request says."""

    session_id: int
    session_epoch: int
    partitions: tuple[tuple[FetchKey, FetchFrom], ...]
    forgotten: tuple[FetchKey, ...]


class FetchSession:
    """One session with one broker."""

    def __init__(self) -> None:
        self._wanted: dict[FetchKey, FetchFrom] = {}
        self._changed: set[FetchKey] = set()
        self._forgotten: set[FetchKey] = set()
        self._known: set[FetchKey] = set()  # what the broker has, once the request under way is answered
        self._session_id = 0
        self._epoch = FULL

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: FetchKey) -> bool:
        return key in self._wanted

    def put(self, key: FetchKey, at: FetchFrom) -> None:
        """Fetch *key* from there, from the next request on."""
        self._wanted[key] = at
        self._changed.add(key)
        self._forgotten.discard(key)

    def remove(self, key: FetchKey) -> None:
        """Do not fetch *key* any more."""
        if self._wanted.pop(key, None) is None:
            return
        self._changed.discard(key)
        if key in self._known:
            self._forgotten.add(key)

    def next_request(self) -> SessionRequest:
        """What to send; the session believes it sent until `failed`."""
        if self._epoch == FULL:
            partitions = tuple(self._wanted.items())
            forgotten: tuple[FetchKey, ...] = ()
            self._known = set(self._wanted)
        else:
            partitions = tuple((key, self._wanted[key]) for key in self._changed)
            forgotten = tuple(self._forgotten)
            self._known.difference_update(forgotten)
            self._known.update(self._changed)
        self._changed.clear()
        self._forgotten.clear()
        return SessionRequest(self._session_id, self._epoch, partitions, forgotten)

    def answered(self, session_id: int) -> None:
        """The request was served; *session_id* 0 means that the broker keeps no session (its cache is full)."""
        self._session_id = session_id
        if session_id == 0:
            self._epoch = FULL
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def failed(self) -> None:
        """The request was refused or lost: begin with a full one."""
        self._session_id = 0
        self._epoch = FULL
        self._known.clear()
