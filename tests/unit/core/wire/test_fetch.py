"""Fetch requests and responses agree with kafka-python's implementation of Kafka's schema."""

import contextlib
import struct
import uuid
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.fetch import (
    VERSIONS,
    AbortedFilter,
    FetchFrom,
    FetchKey,
    FetchSession,
    PartitionFetchResponse,
    SessionRequest,
    fetch_request,
    is_abort_marker,
    parse_fetch_response,
)
from mirrorflow_core.wire.records import Record
from tests.unit.core.wire.messages import FetchRequest, FetchResponse
from tests.unit.core.wire.strategies import batch_of, with_attributes

OFFSETS = st.integers(-1, 2**63 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
CODES = st.integers(-1, 110)
PARTITIONS = st.integers(0, 2**31 - 1)
VERSION = st.sampled_from(VERSIONS)
NAMES = st.text("abc.-_XYZ019", min_size=1, max_size=249)


@st.composite
def topics(draw, version, content):
    """Generates a dictionary of *content* by topic (id or name, depending on the version) and partition."""
    ids = st.uuids().map(lambda topic: topic.bytes) if version >= 13 else NAMES.map(str.encode)
    return draw(
        st.dictionaries(ids, st.dictionaries(PARTITIONS, content, min_size=1, max_size=3), max_size=3)
    )


def named(topic, version):
    """Returns the topic field in kafka-python's form."""
    return {"topic_id": uuid.UUID(bytes=topic)} if version >= 13 else {"topic": topic.decode()}


def key_of(topic, partition, version):
    """Returns the key of a partition of kafka-python's *topic*."""
    return FetchKey(topic.topic_id.bytes if version >= 13 else topic.topic.encode(), partition)


@given(
    st.data(),
    VERSION,
    st.tuples(EPOCHS, EPOCHS),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    NAMES,
)
def test_a_request_has_each_field_where_kafka_python_expects_it(
    data, version, session, read_committed, wait_ms, max_bytes, rack
):
    wanted = data.draw(
        topics(version, st.builds(FetchFrom, OFFSETS, EPOCHS, EPOCHS, st.integers(0, 2**31 - 1)))
    )
    dropped = data.draw(topics(version, st.none()))

    body = fetch_request(
        version,
        SessionRequest(
            session[0],
            session[1],
            tuple(
                (FetchKey(topic, number), position)
                for topic, parts in wanted.items()
                for number, position in parts.items()
            ),
            tuple(FetchKey(topic, number) for topic, parts in dropped.items() for number in parts),
        ),
        read_committed=read_committed,
        max_wait_ms=wait_ms,
        max_bytes=max_bytes,
        rack=rack,
    )

    decoded = FetchRequest.decode(body, version=version)
    assert (-1, wait_ms, 1, max_bytes, int(read_committed), *session, rack) == (
        decoded.replica_id,
        decoded.max_wait_ms,
        decoded.min_bytes,
        decoded.max_bytes,
        decoded.isolation_level,
        decoded.session_id,
        decoded.session_epoch,
        decoded.rack_id,
    )
    decoded_partitions = {
        key_of(topic, part.partition, version): (
            part.fetch_offset,
            part.current_leader_epoch,
            part.last_fetched_epoch,
            part.log_start_offset,
            part.partition_max_bytes,
        )
        for topic in decoded.topics
        for part in topic.partitions
    }
    assert {
        FetchKey(topic, number): (
            position.offset,
            position.leader_epoch,
            position.last_epoch if version >= 12 else -1,
            -1,
            position.max_bytes,
        )
        for topic, parts in wanted.items()
        for number, position in parts.items()
    } == decoded_partitions
    assert {FetchKey(topic, number) for topic, parts in dropped.items() for number in parts} == {
        key_of(topic, number, version)
        for topic in decoded.forgotten_topics_data
        for number in topic.partitions
    }


RESPONSES = st.fixed_dictionaries(
    {
        "error_code": CODES,
        "high_watermark": OFFSETS,
        "last_stable_offset": OFFSETS,
        "log_start_offset": OFFSETS,
        "aborted": st.one_of(st.none(), st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3)),
        "preferred_read_replica": EPOCHS,
        "records": st.one_of(st.none(), st.binary(max_size=300)),
        "diverging": st.one_of(st.none(), st.tuples(EPOCHS, st.integers(0, 2**63 - 1))),
        "leader": st.one_of(st.none(), st.tuples(st.integers(0, 2**31 - 1), EPOCHS)),
    }
)


def foreign_response(number, response, version):
    """Returns the response for one partition in kafka-python's form."""
    data = FetchResponse.FetchableTopicResponse.PartitionData
    plain = {
        name: response[name]
        for name in (
            "error_code",
            "high_watermark",
            "last_stable_offset",
            "log_start_offset",
            "preferred_read_replica",
            "records",
        )
    }
    if version >= 12 and response["diverging"]:
        epoch, end = response["diverging"]
        plain["diverging_epoch"] = data.EpochEndOffset(version=version, epoch=epoch, end_offset=end)
    if version >= 12 and response["leader"]:
        leader, epoch = response["leader"]
        plain["current_leader"] = data.LeaderIdAndEpoch(version=version, leader_id=leader, leader_epoch=epoch)
    aborted = response["aborted"]
    return data(
        version=version,
        partition_index=number,
        aborted_transactions=None
        if aborted is None
        else [
            data.AbortedTransaction(version=version, producer_id=producer, first_offset=first)
            for producer, first in aborted
        ],
        **plain,
    )


def response_of(version, responses, *, throttle_ms=0, error=0, session_id=0):
    """Returns the body of a response as a broker writes it."""
    message = FetchResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=error,
        session_id=session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(
                version=version,
                partitions=[
                    foreign_response(number, response, version) for number, response in parts.items()
                ],
                **named(topic, version),
            )
            for topic, parts in responses.items()
        ],
    )
    return message.encode(version=version)


@given(st.data(), VERSION, st.integers(0, 2**31 - 1), CODES, st.integers(0, 2**31 - 1))
def test_a_response_is_parsed_with_all_fields(data, version, throttle_ms, error, session_id):
    """This includes null and tagged fields."""
    responses = data.draw(topics(version, RESPONSES))
    body = bytearray(
        response_of(version, responses, throttle_ms=throttle_ms, error=error, session_id=session_id)
    )

    fetched = parse_fetch_response(version, memoryview(body))

    assert (throttle_ms, error, session_id) == (fetched.throttle_ms, fetched.error, fetched.session_id)
    tagged = version >= 12
    assert [
        PartitionFetchResponse(
            FetchKey(topic, number),
            response["error_code"],
            response["high_watermark"],
            response["last_stable_offset"],
            response["log_start_offset"],
            tuple(response["aborted"] or ()),
            response["preferred_read_replica"],
            memoryview(response["records"] or b""),
            response["diverging"] if tagged else None,
            response["leader"] if tagged else None,
        )
        for topic, parts in responses.items()
        for number, response in parts.items()
    ] == list(fetched.partitions)


def test_records_are_a_writable_view_into_the_response():
    """A batch is rewritten in place, without a copy of the fetched data."""
    response = {"aborted": None, "diverging": None, "leader": None, "records": b"batch", "error_code": 0}
    response |= dict.fromkeys(
        ("high_watermark", "last_stable_offset", "log_start_offset", "preferred_read_replica"), 0
    )
    body = bytearray(response_of(11, {b"orders": {0: response}}))

    parse_fetch_response(11, memoryview(body)).partitions[0].records[:] = b"BATCH"

    assert b"BATCH" in body


@given(st.data(), VERSION)
def test_a_truncated_fetch_response_is_an_error(data, version):
    """A truncated response must never be parsed as a shorter one."""
    responses = data.draw(topics(version, RESPONSES))
    body = response_of(version, responses)
    # The flexible encoding ends with the tagged fields of the whole message, which are not read.
    cut = data.draw(st.integers(0, len(body) - (2 if version >= 12 else 1)))

    with pytest.raises((struct.error, IndexError)):
        parse_fetch_response(version, memoryview(bytes(body[:cut])))


KEYS = st.integers(0, 2).map(lambda number: FetchKey(b"orders", number))


class RefusedError(Exception):
    """The broker responds with an error code for the whole response."""


class Broker:
    """A broker with fetch sessions (FetchManager.newContext, KIP-227)."""

    def __init__(self):
        self.sessions = {}
        self.next_id = 1
        self.has_room = True

    def serve(self, request):
        """Returns the session id of the response and the fetched partitions."""
        self.sessions.pop(request.session_id, None) if request.session_epoch == 0 else None
        if request.session_epoch == 0:
            requested = dict(request.partitions)
            if not self.has_room or not requested:
                return 0, requested
            self.sessions[self.next_id] = [1, requested]
            self.next_id += 1
            return self.next_id - 1, requested
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
        """Drops all sessions, as a restart or eviction does."""
        self.sessions.clear()


class Sessions(RuleBasedStateMachine):
    """Puts and removes partitions, and receives or loses responses, in any order."""

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
        """Breaks the connection before or after the broker has received the request."""
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
    def has_exactly_the_wanted_partitions(self):
        assert len(self.wanted) == len(self.session)
        assert all(key in self.session for key in self.wanted)


Sessions.TestCase.settings = settings(stateful_step_count=25)
TestSessions = Sessions.TestCase


def open_session(*keys):
    """Opens a session with the partitions *keys*."""
    session = FetchSession()
    for key in keys:
        session.put(key, FetchFrom(0))
    session.next_request()
    session.answered(7)
    return session


A, B = FetchKey(b"orders", 0), FetchKey(b"orders", 1)


def test_an_incremental_request_has_only_changed_partitions():
    session = open_session(A, B)
    session.put(B, FetchFrom(5))

    request = session.next_request()

    assert (7, 1, ((B, FetchFrom(5)),), ()) == (
        request.session_id,
        request.session_epoch,
        request.partitions,
        request.forgotten,
    )


def test_a_partition_that_the_broker_never_had_is_not_forgotten():
    """The partition was put and removed between two requests."""
    session = open_session(A)
    session.put(B, FetchFrom(5))
    session.remove(B)

    assert ((), ()) == (session.next_request().partitions, session.next_request().forgotten)


def test_a_partition_that_is_put_again_is_not_forgotten():
    """The partition was removed and added between two requests. The broker processes forgotten partitions last."""
    session = open_session(A, B)
    session.remove(B)
    session.put(B, FetchFrom(9))

    request = session.next_request()

    assert (((B, FetchFrom(9)),), ()) == (request.partitions, request.forgotten)


@pytest.mark.parametrize("lost", [FetchSession.failed, lambda session: session.answered(0)])
def test_after_a_loss_the_next_request_is_a_full_one(lost):
    """The full request has epoch 0 and every partition.

    It follows a lost request, and a session that the broker does not know.
    """
    session = open_session(A, B)
    session.next_request()

    lost(session)

    request = session.next_request()
    assert (0, 0, {A, B}) == (
        request.session_id,
        request.session_epoch,
        {key for key, _ in request.partitions},
    )


def test_without_a_session_each_partition_comes_first_in_turn():
    """A broker fills a response in the order of the request, up to max_bytes. Here, max_bytes allows one partition."""
    session = FetchSession()
    keys = [FetchKey(b"orders", partition) for partition in range(3)]
    for key in keys:
        session.put(key, FetchFrom(0))
    first = []
    for offset in range(1, 7):
        key = session.next_request().partitions[0][0]
        first.append(key)
        session.answered(0)
        session.put(key, FetchFrom(offset))

    assert keys * 2 == first


def test_session_epochs_wrap_to_one():
    """1 follows 2^31 - 1, because 0 opens a session (FetchMetadata.nextEpoch)."""
    session = open_session(A)
    session._epoch = 0x7FFFFFFF
    session.answered(7)

    assert 1 == session.next_request().session_epoch


def data_batch(producer_id, offset, *, transactional=True):
    batch = batch_of([Record(0, 1, None, b"x")] * 2, base_offset=offset, producer_id=producer_id)
    return with_attributes(batch, 0x10) if transactional else batch


def marker(producer_id, offset, *, commits):
    key, value = struct.pack(">hh", 0, int(commits)), struct.pack(">hi", 0, 3)
    return with_attributes(
        batch_of([Record(0, 1, key, value)], base_offset=offset, producer_id=producer_id), 0x30
    )


def test_records_of_an_aborted_transaction_are_dropped_up_to_its_marker():
    """The next transaction of the producer is delivered."""
    batches = [
        data_batch(7, 0),
        data_batch(8, 2),
        marker(7, 4, commits=False),
        data_batch(7, 5),
        marker(7, 7, commits=True),
    ]
    aborted_filter = AbortedFilter([(7, 0)])

    assert [aborted_filter.delivers(batch) for batch in batches] == [False, True, False, True, False]


def test_records_before_the_aborted_transaction_are_delivered():
    """They belong to an earlier, committed transaction of the producer."""
    batches = [data_batch(7, 0), marker(7, 2, commits=True), data_batch(7, 3), marker(7, 5, commits=False)]
    aborted_filter = AbortedFilter([(7, 3)])

    assert [aborted_filter.delivers(batch) for batch in batches] == [True, False, False, False]


def test_records_outside_transactions_are_delivered():
    """This includes records of a producer whose transaction was aborted, and records without a producer."""
    aborted_filter = AbortedFilter([(7, 0)])

    assert aborted_filter.delivers(data_batch(7, 0, transactional=False))
    assert aborted_filter.delivers(data_batch(-1, 2, transactional=False))


def test_each_response_replaces_the_list_of_aborted_transactions():
    """The list repeats a transaction that started before the fetched range, but not one that has ended."""
    aborted_filter = AbortedFilter([(7, 0)])
    assert not aborted_filter.delivers(data_batch(7, 0))

    aborted_filter.feed([(7, 0)])
    assert not aborted_filter.delivers(data_batch(7, 2))

    aborted_filter.feed([])
    assert aborted_filter.delivers(data_batch(7, 4))


def test_abort_and_commit_markers_are_distinguished():
    """Abort has type 0, commit type 1 (ControlRecordType)."""
    assert is_abort_marker(marker(1, 0, commits=False))
    assert not is_abort_marker(marker(1, 0, commits=True))
    assert not is_abort_marker(marker(1, 0, commits=False)._replace(count=0))


def test_a_marker_without_a_type_is_an_error():
    """The type of an unreadable control record is not assumed."""
    broken = with_attributes(batch_of([Record(0, 1, b"\0", b"")], producer_id=1), 0x30)

    with pytest.raises(CorruptRecordsError):
        is_abort_marker(broken)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["write", "plain", "commit", "abort"])), max_size=25
    ),
    st.data(),
)
def test_the_aborted_filter_delivers_exactly_plain_and_committed_records(steps, data):
    """This holds for any interleaving of producers and any start offset."""
    steps = steps + [(producer, "commit") for producer in (1, 2, 3)]
    batches, expected, aborted, spans = [], [], [], []
    open_batches: dict[int, list[int]] = {}
    offset = 0
    for producer, step in steps:
        if step == "plain":
            batches.append(data_batch(0, offset, transactional=False))
            expected.append(True)
        elif step == "write":
            open_batches.setdefault(producer, []).append(len(batches))
            batches.append(data_batch(producer, offset))
            expected.append(True)
        else:
            members = open_batches.pop(producer, [])
            if step == "abort" and members:
                aborted.append((producer, batches[members[0]].base_offset))
                spans.append((members[0], len(batches)))
                for member in members:
                    expected[member] = False
            batches.append(marker(producer, offset, commits=step == "commit"))
            expected.append(False)
        offset = batches[-1].next_offset
    start = data.draw(st.integers(0, len(batches)))
    listed = [entry for entry, (_, last) in zip(aborted, spans, strict=True) if last >= start]

    aborted_filter = AbortedFilter(reversed(listed))

    assert expected[start:] == [aborted_filter.delivers(batch) for batch in batches[start:]]
