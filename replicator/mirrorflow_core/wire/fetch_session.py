"""Client side of an incremental fetch session (KIP-227): each request sends only the partitions that changed.

The broker remembers the partitions, so ten thousand idle ones cost nothing. Guarantees: after any error or
lost response the next request is a full one; a partition is never assumed to be in a session that the broker
does not have.
"""

from dataclasses import dataclass

from mirrorflow_core.wire.fetch import FetchFrom, FetchKey

FULL = 0  # epoch of a request that opens a session
_EPOCH_MAX = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session fields and partitions of the next fetch request."""

    session_id: int
    session_epoch: int
    partitions: tuple[tuple[FetchKey, FetchFrom], ...]
    forgotten: tuple[FetchKey, ...]


class FetchSession:
    """The fetch session with one broker."""

    def __init__(self) -> None:
        self._wanted: dict[FetchKey, FetchFrom] = {}
        self._changed: set[FetchKey] = set()
        self._forgotten: set[FetchKey] = set()
        self._known: set[FetchKey] = set()  # what the broker has once the in-flight request succeeds
        self._session_id = 0
        self._epoch = FULL

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: FetchKey) -> bool:
        return key in self._wanted

    def put(self, key: FetchKey, at: FetchFrom) -> None:
        """Fetch *key* from *at*, starting with the next request."""
        self._wanted[key] = at
        self._changed.add(key)
        self._forgotten.discard(key)

    def remove(self, key: FetchKey) -> None:
        """Stop fetching *key*."""
        if self._wanted.pop(key, None) is None:
            return
        self._changed.discard(key)
        if key in self._known:
            self._forgotten.add(key)

    def next_request(self) -> SessionRequest:
        """Return the next request and record its content as sent; after an error, call `failed`."""
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
        """Record a successful response.

        *session_id* 0 means that the broker keeps no session (its cache is full).
        """
        self._session_id = session_id
        if session_id == 0:
            self._epoch = FULL
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def failed(self) -> None:
        """Record a refused or lost request: the next one is a full request."""
        self._session_id = 0
        self._epoch = FULL
        self._known.clear()
