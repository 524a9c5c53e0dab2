"""Config and status records equal those of Java. Errors about malformed records do not show values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    ConnectorTarget,
    LogLevelRecord,
    RestartRequest,
    TargetState,
    TaskConfig,
    TasksCommit,
    WorkerState,
    WorkerStatus,
    decode_config,
    decode_status,
    encode_config,
    encode_status,
)
from mirrorflow_core.connect.worker_state import LatestStatuses, WorkerConfigs

# Records as a worker of Kafka 4.3 writes them.
CONFIGS = {
    (b"connector-a-b", b'{"properties":{"name":"a-b","x":"1\\n"}}'): ConnectorConfig(
        connector="a-b", properties={"name": "a-b", "x": "1\n"}
    ),
    (b"connector-a", None): ConnectorConfig(connector="a", properties=None),
    (b"task-a-1-12", b'{"properties":{"k":"v"}}'): TaskConfig(
        connector="a-1", task=12, properties={"k": "v"}
    ),
    (b"commit-a", b'{"tasks":2}'): TasksCommit(connector="a", tasks=2),
    (b"target-state-a", b'{"state":"STARTED","state.v2":"STARTED"}'): ConnectorTarget(
        connector="a", state=TargetState.STARTED
    ),
    (b"target-state-a", b'{"state":"PAUSED","state.v2":"STOPPED"}'): ConnectorTarget(
        connector="a", state=TargetState.STOPPED
    ),
    (b"target-state-a", None): ConnectorTarget(connector="a", state=None),
    (b"restart-connector-a", b'{"include-tasks":true,"only-failed":false}'): RestartRequest(
        connector="a", include_tasks=True
    ),
}
STATUSES = {
    (
        b"status-connector-a",
        b'{"state":"RUNNING","trace":null,"worker_id":"h:8083","generation":3,"version":"4.3.1"}',
    ): WorkerStatus(
        connector="a", state=WorkerState.RUNNING, worker_id="h:8083", generation=3, version="4.3.1"
    ),
    (
        b"status-task-a-b-0",
        b'{"state":"FAILED","trace":"no\\n\\tat","worker_id":"h:8083","generation":3,"version":null}',
    ): WorkerStatus(
        connector="a-b", task=0, state=WorkerState.FAILED, worker_id="h:8083", generation=3, trace="no\n\tat"
    ),
    (b"status-task-a-0", None): WorkerStatus(connector="a", task=0, state=WorkerState.DESTROYED),
}

names = st.text(min_size=1, max_size=12)
texts = st.text(max_size=20)
properties = st.none() | st.dictionaries(texts, texts, max_size=4)
counts = st.integers(0, 2**31 - 1)
config_records = st.one_of(
    st.builds(ConnectorConfig, connector=names, properties=properties),
    st.builds(TaskConfig, connector=names, task=counts, properties=properties),
    st.builds(TasksCommit, connector=names, tasks=counts),
    st.builds(ConnectorTarget, connector=names, state=st.none() | st.sampled_from(TargetState)),
    st.builds(RestartRequest, connector=names, include_tasks=st.booleans(), only_failed=st.booleans()),
)


@pytest.mark.parametrize(("written", "record"), CONFIGS.items())
def test_config_records_equal_those_of_java(written: tuple[bytes, bytes | None], record: ConfigRecord):
    """The records are equal when encoded and when decoded."""
    assert (record, written) == (decode_config(*written), encode_config(record))


@pytest.mark.parametrize(("written", "record"), STATUSES.items())
def test_status_records_equal_those_of_java(written: tuple[bytes, bytes | None], record: WorkerStatus):
    """The records are equal when encoded and when decoded."""
    assert (record, written) == (decode_status(*written), encode_status(record))


@given(config_records)
def test_any_config_record_is_decoded_as_encoded(record: ConfigRecord):
    """Names and properties may have any characters."""
    assert record == decode_config(*encode_config(record))


@given(
    st.builds(
        WorkerStatus,
        connector=names,
        task=st.none() | counts,
        state=st.sampled_from(WorkerState),
        trace=texts,
    )
)
def test_any_status_is_decoded_as_encoded(status: WorkerStatus):
    """The details of a destroyed task are not kept."""
    decoded = decode_status(*encode_status(status))

    assert decoded is not None
    assert (status.connector, status.task, status.state) == (decoded.connector, decoded.task, decoded.state)
    assert status.state is WorkerState.DESTROYED or status == decoded


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_no_bytes_crash_a_reader(key: bytes | None, value: bytes | None):
    """The bytes are ignored, decoded, or refused with a ValueError."""
    for prefix in (b"", b"connector-a", b"task-a-1", b"commit-a", b"target-state-a", b"status-task-a-1"):
        for decode in (decode_config, decode_status):
            try:
                decode(None if key is None else prefix + key, value)
            except ValueError:
                continue


def test_the_record_of_a_log_level_equals_that_of_java():
    record = LogLevelRecord(namespace="org.apache", level="WARN")
    key, value = encode_config(record)

    assert (b"logger-cluster-org.apache", b'{"level":"WARN"}') == (key, value)
    assert record == decode_config(key, value)


@pytest.mark.parametrize("key", [b"logger-cluster-org.apache", b"session-key-of-mine", b"x"])
def test_records_of_other_types_are_ignored(key: bytes):
    """These records do not concern connectors."""
    assert decode_config(key, b'{"key":"c2VjcmV0"}') is None
    assert decode_status(b"status-topic-t:connector-a", b'{"topic":{}}') is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"connector-a", b'{"properties":{"sasl.jaas.config":{"password":"hunter2"}}}'),
        (b"connector-a", b'{"properties":"hunter2"}'),
        (b"connector-a", b"hunter2"),
        (b"task-a-x", b'{"properties":{"password":"hunter2"}}'),
        (b"commit-a", b'{"tasks":"hunter2"}'),
        (b"target-state-a", b'{"state":"hunter2"}'),
    ],
)
def test_a_problem_shows_no_value(key: bytes, value: bytes):
    """Properties contain secrets, and problems are logged."""
    with pytest.raises(ValueError, match=r"^its|^it |^the property|^tasks") as caught:
        decode_config(key, value)

    assert "hunter2" not in str(caught.value)


def test_a_target_state_of_a_later_version_falls_back_to_the_old_field():
    """As in Java, the old field allows for states that an earlier version does not know."""
    value = b'{"state":"PAUSED","state.v2":"HIBERNATING"}'

    assert decode_config(b"target-state-a", value) == ConnectorTarget(connector="a", state=TargetState.PAUSED)


def state_of(*records: ConfigRecord) -> WorkerConfigs:
    configs = WorkerConfigs()
    for record in records:
        configs.take(record)
    return configs


def task(number: int, value: str) -> TaskConfig:
    return TaskConfig(connector="a", task=number, properties={"v": value})


def test_task_configs_apply_after_their_commit():
    """An incomplete set that a failed leader has written changes nothing."""
    before = state_of(task(0, "x"), task(1, "x"), TasksCommit(connector="a", tasks=2), task(0, "y"))

    assert {"a": ({"v": "x"}, {"v": "x"})} == before.tasks


def test_a_commit_that_lacks_a_task_makes_the_connector_inconsistent():
    """Compaction has removed an older config. The old tasks stay until a whole set is written."""
    configs = state_of(task(1, "x"), TasksCommit(connector="a", tasks=2))

    assert ({"a"}, {}) == (configs.inconsistent, configs.tasks)
    for record in (task(0, "y"), task(1, "y"), TasksCommit(connector="a", tasks=2)):
        configs.take(record)
    assert (set(), 2) == (configs.inconsistent, len(configs.tasks["a"]))


def test_a_lower_task_count_removes_the_other_tasks():
    """The topic may still have the config of a removed task."""
    configs = state_of(task(1, "old"), task(0, "new"), TasksCommit(connector="a", tasks=1))

    assert {"a": ({"v": "new"},)} == configs.tasks


def test_a_recreated_connector_has_the_target_state_started():
    """Deleting the connector also removes its target state and tasks."""
    configs = state_of(
        ConnectorConfig(connector="a", properties={}),
        ConnectorTarget(connector="a", state=TargetState.STOPPED),
        TaskConfig(connector="a", task=0, properties={}),
        TasksCommit(connector="a", tasks=1),
        ConnectorConfig(connector="a", properties=None),
        ConnectorTarget(connector="a", state=None),
    )

    assert ({}, {}, TargetState.STARTED) == (configs.connectors, configs.tasks, configs.target("a"))


def test_a_recreated_connector_does_not_have_tasks_that_were_written_after_its_deletion():
    """A node may write task configs before it reads that the connector was deleted."""
    late = (
        ConnectorConfig(connector="a", properties={}),
        ConnectorConfig(connector="a", properties=None),
        task(0, "old"),
        TasksCommit(connector="a", tasks=1),
        ConnectorConfig(connector="a", properties={}),
    )
    configs = state_of(*late)

    assert ({"a": {}}, {}) == (configs.connectors, configs.tasks)
    assert {"a": ({"v": "new"},)} == state_of(
        *late, task(0, "new"), TasksCommit(connector="a", tasks=1)
    ).tasks


def status(
    state: WorkerState, generation: int, worker: str = "h:1", number: int | None = None
) -> WorkerStatus:
    return WorkerStatus(connector="a", task=number, state=state, worker_id=worker, generation=generation)


def test_a_late_status_of_the_former_owner_of_a_task_is_ignored():
    """An UNASSIGNED of an older generation is ignored; one of a newer generation applies."""
    statuses = LatestStatuses()
    for record in (status(WorkerState.RUNNING, 5, number=0), status(WorkerState.UNASSIGNED, 4, "h:2", 0)):
        statuses.take(record)
    running = statuses.tasks("a")[0].state
    statuses.take(status(WorkerState.UNASSIGNED, 6, number=0))

    assert (WorkerState.RUNNING, WorkerState.UNASSIGNED) == (running, statuses.tasks("a")[0].state)


def test_a_safe_write_does_not_replace_a_newer_generation_of_a_different_worker():
    """Java's `putSafe` behaves the same."""
    statuses = LatestStatuses()
    statuses.take(status(WorkerState.RUNNING, 5, "h:1"))

    allowed = [
        statuses.may_write(status(WorkerState.FAILED, g, w)) for g, w in ((4, "h:2"), (4, "h:1"), (5, "h:2"))
    ]
    assert [False, True, True] == allowed


def test_a_deleted_connector_removes_the_statuses_of_its_tasks():
    statuses = LatestStatuses()
    for record in (
        status(WorkerState.RUNNING, 1),
        status(WorkerState.RUNNING, 1, number=0),
        status(WorkerState.DESTROYED, 1),
    ):
        statuses.take(record)

    assert (None, {}, frozenset()) == (statuses.connector("a"), statuses.tasks("a"), statuses.connectors())
