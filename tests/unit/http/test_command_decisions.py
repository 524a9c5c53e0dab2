"""What a distributed worker writes for a command, and what it refuses."""

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
    Wanted,
    decide,
    new_tasks,
    seeds,
    simple_name,
    statuses,
    wanted,
    with_task_class,
)
from mirrorflow_replicator.version import connect_version
from tests.unit.http.reports import connector, task

NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/a/stop' endpoint"
)
SOURCE = {"name": "a", "connector.class": "MirrorSourceConnector", "topics": "t"}


def configs(*records):
    found = WorkerConfigs()
    for record in (ConnectorConfig(connector="a", properties=SOURCE), *records):
        found.take(record)
    return found


def fine(*_):
    return {}


def wrong(plugin, _):
    return {"topics": f"{plugin}: no topics."}


def test_a_new_connector_is_written_behind_its_state():
    """A reader of the config has already read its target state (KIP-980)."""
    command = Configure(
        name="b", properties={**SOURCE, "name": "b"}, target=TargetState.STOPPED, may_exist=False
    )

    assert (
        ConnectorTarget(connector="b", state=TargetState.STOPPED),
        ConnectorConfig(connector="b", properties={**SOURCE, "name": "b"}),
    ) == decide(command, configs(), fine)


def test_a_patch_is_written_whole():
    """Null takes away (KIP-477)."""
    command = Patch(name="a", changes={"topics": None, "tasks.max": "2"})

    expected = {"name": "a", "connector.class": "MirrorSourceConnector", "tasks.max": "2"}
    assert (ConnectorConfig(connector="a", properties=expected),) == decide(command, configs(), fine)


def test_deletion_and_states():
    """A deleted connector takes its state with it."""
    assert (
        ConnectorConfig(connector="a", properties=None),
        ConnectorTarget(connector="a", state=None),
    ) == decide(Delete(name="a"), configs(), fine)
    paused = ConnectorTarget(connector="a", state=TargetState.PAUSED)
    assert (paused,) == decide(SetTarget(name="a", target=TargetState.PAUSED), configs(), fine)
    assert () == decide(Restart(name="a"), configs(), fine)


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
def test_refusals_are_connects(command, status, message):
    """By status and sentence, and never with a value of the properties."""
    with pytest.raises(ConnectError) as caught:
        decide(command, configs(), fine)

    assert (status, message) == (caught.value.status, str(caught.value))


def test_all_errors_of_a_flow_are_reported_together():
    """In Connect's words around ours; a connector with a wrong config is not written."""
    command = Configure(name="a\n", properties={**SOURCE, "name": "a\n"}, may_exist=True)

    with pytest.raises(ConnectError) as caught:
        decide(command, configs(), wrong)

    assert (
        "Connector configuration is invalid and contains the following 2 error(s):\n"
        "MirrorSourceConnector: no topics.\n"
        "name: it contains control characters; write a name without them.\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    ) == str(caught.value)


def test_what_is_wanted_changes_with_a_restart():
    """So that what runs is replaced by the same."""
    stopped = configs(ConnectorTarget(connector="a", state=TargetState.STOPPED))

    assert {"a": Wanted(properties=SOURCE, target=TargetState.STOPPED, run=0)} == wanted(stopped, {})
    assert wanted(configs(), {}) != wanted(configs(), {"a": 1})


def test_files_are_written_where_they_say_something_new():
    """A start with the same files writes nothing."""
    other = {**SOURCE, "topics": "u"}

    assert () == seeds([SOURCE], configs())
    assert (ConnectorConfig(connector="a", properties=other),) == seeds([other], configs())


def test_tasks_are_committed_with_the_class_that_java_starts():
    """All of them and the commit behind; and not again as long as they are the same."""
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


def test_statuses_tell_why_only_of_what_failed():
    """Java's readers take a trace for a failure."""
    report = replace(
        connector(task(), task(number=1, state="FAILED", trace="It broke.")), name="a", trace="A warning."
    )
    found = statuses([report], worker_id="host:8083", generation=3)

    assert [
        WorkerStatus(
            connector="a",
            task=None,
            state=WorkerState.RUNNING,
            worker_id="host:8083",
            generation=3,
            version=connect_version(),
        ),
        WorkerStatus(
            connector="a",
            task=0,
            state=WorkerState.RUNNING,
            worker_id="host:8083",
            generation=3,
            version=connect_version(),
        ),
        WorkerStatus(
            connector="a",
            task=1,
            state=WorkerState.FAILED,
            worker_id="host:8083",
            generation=3,
            trace="It broke.",
            version=connect_version(),
        ),
    ] == list(found.values())
    assert list(found) == [status.key for status in found.values()]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("org.apache.kafka.connect.mirror.MirrorSourceConnector", "MirrorSourceConnector"),
        ("MirrorCheckpoint", "MirrorCheckpointConnector"),
        ("com.example.Other", "com.example.Other"),
    ],
)
def test_classes_are_known_by_any_of_their_names(written, expected):
    """As Connect finds plug-ins."""
    assert expected == simple_name(written)
