"""The records that a distributed worker writes for a command, and the commands that it refuses."""

from dataclasses import replace

import pytest

from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.connect.worker_records import (
    ConnectorConfig,
    ConnectorTarget,
    TargetState,
    TaskConfig,
    TasksCommit,
    WorkerState,
    WorkerStatus,
)
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_replicator.config.connector_classes import simple_name
from mirrorflow_replicator.http.commands import (
    AlterOffsets,
    Configure,
    Delete,
    ListOffsets,
    Patch,
    ResetOffsets,
    Restart,
    RestartTask,
    SetTarget,
)
from mirrorflow_replicator.version import connect_version
from mirrorflow_replicator.worker.config_decisions import (
    Wanted,
    decide,
    new_tasks,
    seeds,
    statuses,
    wanted,
    with_task_class,
)
from tests.unit.http.reports import connector, task

NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/a/stop' endpoint"
)
SOURCE = {"name": "a", "connector.class": "MirrorSourceConnector", "topics": "t"}


def configs(*records):
    worker_configs = WorkerConfigs()
    for record in (ConnectorConfig(connector="a", properties=SOURCE), *records):
        worker_configs.take(record)
    return worker_configs


def no_errors(*_):
    return {}


def topics_error(plugin, _):
    return {"topics": f"{plugin}: no topics."}


def test_a_new_connector_is_written_after_its_target_state():
    """A reader of the config topic then has the target state before the config (KIP-980)."""
    command = Configure(
        name="b", properties={**SOURCE, "name": "b"}, target=TargetState.STOPPED, may_exist=False
    )

    assert (
        ConnectorTarget(connector="b", state=TargetState.STOPPED),
        ConnectorConfig(connector="b", properties={**SOURCE, "name": "b"}),
    ) == decide(command, configs(), no_errors)


def test_a_patch_is_written_as_a_complete_config():
    """A null removes the property (KIP-477)."""
    command = Patch(name="a", changes={"topics": None, "tasks.max": "2"})

    expected = {"name": "a", "connector.class": "MirrorSourceConnector", "tasks.max": "2"}
    assert (ConnectorConfig(connector="a", properties=expected),) == decide(command, configs(), no_errors)


def test_a_deleted_connector_loses_its_target_state():
    assert (
        ConnectorConfig(connector="a", properties=None),
        ConnectorTarget(connector="a", state=None),
    ) == decide(Delete(name="a"), configs(), no_errors)


def test_a_pause_writes_the_target_state_and_a_restart_writes_nothing():
    paused = ConnectorTarget(connector="a", state=TargetState.PAUSED)
    assert (paused,) == decide(SetTarget(name="a", target=TargetState.PAUSED), configs(), no_errors)
    assert () == decide(Restart(name="a"), configs(), no_errors)


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (Configure(name="a", properties=SOURCE, may_exist=False), 409, "Connector a already exists"),
        (Patch(name="b", changes={}), 404, "Connector b not found"),
        (Delete(name="b"), 404, "Connector b not found"),
        (SetTarget(name="b", target=TargetState.PAUSED), 404, "Unknown connector b"),
        (Restart(name="b"), 404, "Unknown connector: b"),
        (RestartTask(name="b", task=0), 404, "Unknown connector: b"),
        (ListOffsets(name="b"), 404, "Connector b not found"),
        (AlterOffsets(name="b", offsets=()), 404, "Connector b not found"),
        (
            ResetOffsets(name="a"),
            400,
            NOT_STOPPED,
        ),
        (
            Configure(name="b", properties={"name": "b", "password": "secret"}, may_exist=True),
            400,
            "Connector config contains no connector type",
        ),
    ],
)
def test_refusals_have_the_status_and_message_of_connect(command, status, message):
    """The message contains no values of properties."""
    with pytest.raises(ConnectError) as caught:
        decide(command, configs(), no_errors)

    assert (status, message) == (caught.value.status, str(caught.value))


def test_a_name_that_no_record_can_have_as_its_key_is_refused():
    command = Configure(name="a\ud800", properties={**SOURCE, "name": "a\ud800"}, may_exist=True)

    with pytest.raises(ConnectError, match="name: it contains half of a surrogate pair"):
        decide(command, configs(), lambda *_: {})


def test_all_errors_of_a_config_are_reported_together():
    """Connect's message contains MirrorFlow's errors. Nothing is written."""
    command = Configure(name="a\n", properties={**SOURCE, "name": "a\n"}, may_exist=True)

    with pytest.raises(ConnectError) as caught:
        decide(command, configs(), topics_error)

    assert (
        "Connector configuration is invalid and contains the following 2 error(s):\n"
        "MirrorSourceConnector: no topics.\n"
        "name: it contains control characters; write a name without them.\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    ) == str(caught.value)


def test_a_restart_changes_the_run_number_of_a_connector():
    """A changed number replaces the running connector by an equal one."""
    stopped = configs(ConnectorTarget(connector="a", state=TargetState.STOPPED))

    assert {"a": Wanted(properties=SOURCE, target=TargetState.STOPPED, run=0)} == wanted(stopped, {})
    assert wanted(configs(), {}) != wanted(configs(), {"a": 1})


def test_connector_files_are_written_only_if_they_have_changed():
    other = {**SOURCE, "topics": "u"}

    assert () == seeds([SOURCE], configs())
    assert (ConnectorConfig(connector="a", properties=other),) == seeds([other], configs())


def test_changed_task_configs_are_written_with_javas_task_class_before_their_commit():
    """Equal task configs are not written again."""
    report = replace(
        connector(task()),
        name="a",
        connector_class="MirrorSourceConnector",
        task_properties=({"task.index": "0"},),
    )
    properties = {
        "task.index": "0",
        "task.class": "org.apache.kafka.connect.mirror.MirrorSourceTask",
    }
    report = replace(report, task_properties=with_task_class(report.connector_class, report.task_properties))
    expected = (
        TaskConfig(connector="a", task=0, properties=properties),
        TasksCommit(connector="a", tasks=1),
    )

    assert expected == new_tasks(report.name, report.task_properties, configs())
    assert () == new_tasks(report.name, report.task_properties, configs(*expected))
    stopped = replace(report, task_properties=())
    assert (TasksCommit(connector="a", tasks=0),) == new_tasks(
        stopped.name, stopped.task_properties, configs(*expected)
    )


def test_only_the_statuses_of_failed_tasks_have_a_trace():
    """Java reads a status with a trace as a failure."""
    report = replace(
        connector(task(), task(number=1, state="FAILED", trace="It broke.")), name="a", trace="A warning."
    )
    written = statuses([report], worker_id="host:8083", generation=3)

    def status(task: int | None, state: WorkerState, trace: str | None = None) -> WorkerStatus:
        return WorkerStatus(
            connector="a",
            task=task,
            state=state,
            worker_id="host:8083",
            generation=3,
            trace=trace,
            version=connect_version(),
        )

    assert [
        status(None, WorkerState.RUNNING),
        status(0, WorkerState.RUNNING),
        status(1, WorkerState.FAILED, "It broke."),
    ] == list(written.values())
    assert list(written) == [status.key for status in written.values()]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("org.apache.kafka.connect.mirror.MirrorSourceConnector", "MirrorSourceConnector"),
        ("MirrorCheckpoint", "MirrorCheckpointConnector"),
        ("com.example.Other", "com.example.Other"),
    ],
)
def test_a_connector_class_is_recognized_by_each_of_its_names(written, expected):
    """Connect accepts the same names for plug-ins."""
    assert expected == simple_name(written)
