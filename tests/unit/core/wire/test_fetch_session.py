"""The book-keeping of a fetch session against a broker's own: what we believe the broker reads, it reads."""

import contextlib
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirrorflow_core.wire.fetch import FetchFrom, FetchKey
from mirrorflow_core.wire.fetch_session import FetchSession

KEYS = st.integers(0, 2).map(lambda number: FetchKey(b"orders", number))


class RefusedError(Exception):
    """The broker answers with an error code of the whole response."""


class Broker:
    """Kafka's side (FetchManager.newContext, KIP-227): what a session holds and which epochs it takes."""

    def __init__(self):
        self.sessions = {}
        self.next_id = 1
        self.has_room = True

    def serve(self, request):
        """The session id of the answer, and what was read."""
        self.sessions.pop(request.session_id, None) if request.session_epoch == 0 else None
        if request.session_epoch == 0:
            asked = dict(request.partitions)
            if not self.has_room or not asked:
                return 0, asked
            self.sessions[self.next_id] = [1, asked]
            self.next_id += 1
            return self.next_id - 1, asked
        if request.session_id not in self.sessions:
            raise RefusedError("FETCH_SESSION_ID_NOT_FOUND")
        session = self.sessions[request.session_id]
        if session[0] != request.session_epoch:
            raise RefusedError("INVALID_FETCH_SESSION_EPOCH")
        session[0] += 1
        session[1].update(request.partitions)
        for key in request.forgotten:
            session[1].pop(key, None)
        return request.session_id, session[1]

    def forget(self):
        """A restart, or eviction."""
        self.sessions.clear()


class Sessions(RuleBasedStateMachine):
    """Puts, removes, answers, losses and forgetful brokers in any order."""

    def __init__(self):
        super().__init__()
        self.broker = Broker()
        self.session = FetchSession()
        self.wanted = {}

    @rule(key=KEYS, offset=st.integers(0, 99))
    def put(self, key, offset):
        self.wanted[key] = FetchFrom(offset)
        self.session.put(key, FetchFrom(offset))

    @rule(key=KEYS)
    def remove(self, key):
        self.wanted.pop(key, None)
        self.session.remove(key)

    @precondition(lambda self: self.wanted)
    @rule()
    def fetch(self):
        request = self.session.next_request()
        assert not Counter(key for key, _ in request.partitions) - Counter(dict.fromkeys(self.wanted, 1))
        assert not {key for key, _ in request.partitions} & set(request.forgotten)
        try:
            session_id, read = self.broker.serve(request)
        except RefusedError:
            self.session.failed()
            return
        assert self.wanted == read
        self.session.answered(session_id)

    @precondition(lambda self: self.wanted)
    @rule(arrived=st.booleans())
    def lose(self, arrived):
        """The connection broke, before the broker had the request or after."""
        request = self.session.next_request()
        if arrived:
            with contextlib.suppress(RefusedError):
                self.broker.serve(request)
        self.session.failed()

    @rule()
    def forget(self):
        self.broker.forget()

    @rule(has_room=st.booleans())
    def fill(self, has_room):
        self.broker.has_room = has_room

    @invariant()
    def knows_what_is_wanted(self):
        assert len(self.wanted) == len(self.session)
        assert all(key in self.session for key in self.wanted)


Sessions.TestCase.settings = settings(stateful_step_count=25)
TestSessions = Sessions.TestCase


def began(*keys):
    """A session that holds *keys*."""
    session = FetchSession()
    for key in keys:
        session.put(key, FetchFrom(0))
    session.next_request()
    session.answered(7)
    return session


A, B = FetchKey(b"orders", 0), FetchKey(b"orders", 1)


def test_an_idle_partition_costs_nothing():
    """Only what has changed is said again."""
    session = began(A, B)
    session.put(B, FetchFrom(5))

    request = session.next_request()

    assert (7, 1, ((B, FetchFrom(5)),), ()) == (
        request.session_id,
        request.session_epoch,
        request.partitions,
        request.forgotten,
    )


def test_what_the_broker_never_had_is_not_forgotten():
    """Put and removed between two requests, it is not mentioned."""
    session = began(A)
    session.put(B, FetchFrom(5))
    session.remove(B)

    assert ((), ()) == (session.next_request().partitions, session.next_request().forgotten)


def test_what_is_wanted_again_is_not_forgotten():
    """Removed and put between two requests: a broker that forgets last would never serve it."""
    session = began(A, B)
    session.remove(B)
    session.put(B, FetchFrom(9))

    request = session.next_request()

    assert (((B, FetchFrom(9)),), ()) == (request.partitions, request.forgotten)


@pytest.mark.parametrize("lost", [FetchSession.failed, lambda session: session.answered(0)])
def test_after_a_loss_the_next_request_is_a_full_one(lost):
    """Epoch 0 and every partition, whether the request was lost or the broker keeps no session."""
    session = began(A, B)
    session.next_request()

    lost(session)

    request = session.next_request()
    assert (0, 0, {A, B}) == (
        request.session_id,
        request.session_epoch,
        {key for key, _ in request.partitions},
    )


def test_epochs_go_round_without_the_one_that_opens_a_session():
    """After 2^31 - 1 comes 1 (FetchMetadata.nextEpoch)."""
    session = began(A)
    session._epoch = 0x7FFFFFFF
    session.answered(7)

    assert 1 == session.next_request().session_epoch
