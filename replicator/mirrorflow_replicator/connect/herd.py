"""What a distributed worker makes of a command: which records of the config topic say it, or Connect's refusal.

Pure. `connect.worker_state` holds what the topic says, `runtime.herding` writes what is decided here, reads it back, and
lets run what is wanted. Sentences are those of AbstractHerder and DistributedHerder (Kafka 4.3), but for properties,
which are never repeated: they may hold secrets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirrorflow_replicator.connect.commands import (
    AlterOffsets,
    Command,
    Configure,
    Delete,
    Fence,
    ListOffsets,
    Patch,
    PutTasks,
    ResetOffsets,
    Restart,
    RestartTask,
    SetLevel,
    SetTarget,
)
from mirrorflow_replicator.connect.group_protocol import Unit
from mirrorflow_replicator.connect.plugins import MIRROR_PACKAGE
from mirrorflow_replicator.connect.view import ConnectError
from mirrorflow_replicator.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    ConnectorTarget,
    LogLevel,
    State,
    TargetState,
    TaskConfig,
    TasksCommit,
    WorkerStatus,
)
from mirrorflow_replicator.connect.worker_state import WorkerConfigs
from mirrorflow_replicator.flow.report import ConnectorReport

Problems = Callable[[str, Mapping[str, str]], Mapping[str, str]]

_TASKS = {
    "MirrorSourceConnector": "MirrorSourceTask",
    "MirrorCheckpointConnector": "MirrorCheckpointTask",
    "MirrorHeartbeatConnector": "MirrorHeartbeatTask",
}
_ALSO = (
    "You can also find the above list of errors at the endpoint "
    "`/connector-plugins/{connectorType}/config/validate`"
)
_STATES = frozenset(state.value for state in State)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to run under a connector's name; another value is another run of it."""

    properties: Mapping[str, str] = field(repr=False)
    target: TargetState = TargetState.STARTED
    run: int = 0  # counts the restarts that were asked for


def decide(command: Command, configs: WorkerConfigs, problems: Problems) -> tuple[ConfigRecord, ...]:
    """The records that say *command*, none where it changes nothing that is kept. Raises ConnectError."""
    match command:
        case Configure(name=name, properties=properties, target=target):
            if name in configs.connectors and not command.may_exist:
                raise ConnectError(409, f"Connector {name} already exists")
            check(properties, problems)
            said = () if target is None else (ConnectorTarget(connector=name, state=target),)
            return (*said, ConnectorConfig(connector=name, properties=properties))
        case Patch(name=name, changes=changes):
            _must_exist(name, configs, "Connector {} not found")
            patched = {**configs.connectors[name], **changes}
            properties = {key: value for key, value in patched.items() if value is not None}
            check(properties, problems)
            return (ConnectorConfig(connector=name, properties=properties),)
        case Delete(name=name):
            _must_exist(name, configs, "Connector {} not found")
            return (
                ConnectorConfig(connector=name, properties=None),
                ConnectorTarget(connector=name, state=None),
            )
        case SetTarget(name=name, target=target):
            _must_exist(name, configs, "Unknown connector {}")
            wish = ConnectorTarget(connector=name, state=target)
            if target is TargetState.STOPPED and configs.tasks.get(name):
                # First, as Java does: its worker alters no offsets of a connector that has tasks, nor starts them again.
                return TasksCommit(connector=name, tasks=0), wish
            return (wish,)
        case Restart(name=name) | RestartTask(name=name) | PutTasks(name=name) | Fence(name=name):
            _must_exist(name, configs, "Unknown connector: {}")
        case SetLevel(name=name, level=level):
            return (LogLevel(namespace=name, level=level),)
        case ListOffsets(name=name):
            _must_exist(name, configs, "Connector {} not found")
        case AlterOffsets(name=name) | ResetOffsets(name=name):
            _must_exist(name, configs, "Connector {} not found")
            if configs.target(name) is not TargetState.STOPPED:
                raise ConnectError(
                    400,
                    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done "
                    f"for the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint",
                )
    return ()


def check(properties: Mapping[str, str], problems: Problems) -> None:
    """Raises ConnectError with all that is wrong, in Connect's words around ours."""
    plugin = properties.get("connector.class")
    if not plugin:
        raise ConnectError(400, "Connector config contains no connector type")
    found = dict(problems(simple_name(plugin), properties))
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in properties.get("name", "")):
        found["name"] = "name: it holds control characters; write a name without them."
    if found:
        raise ConnectError(
            400,
            "\n".join(
                (
                    f"Connector configuration is invalid and contains the following {len(found)} error(s):",
                    *found.values(),
                    _ALSO,
                )
            ),
        )


def simple_name(connector_class: str) -> str:
    """MM2's classes may be named without package, and without "Connector"."""
    simple = connector_class.removeprefix(MIRROR_PACKAGE)
    return simple if simple in _TASKS or f"{simple}Connector" not in _TASKS else f"{simple}Connector"


def wanted(configs: WorkerConfigs, restarts: Mapping[str, int]) -> dict[str, Wanted]:
    """What is to run, by name, after so many *restarts* of each."""
    return {
        name: Wanted(properties=properties, target=configs.target(name), run=restarts.get(name, 0))
        for name, properties in configs.connectors.items()
    }


def units(configs: WorkerConfigs) -> frozenset[Unit]:
    """All that the nodes of a group share out: connectors, and the tasks of those that are not stopped."""
    tasks = (
        Unit(connector=name, task=task)
        for name in configs.connectors
        if configs.target(name) is not TargetState.STOPPED
        for task in range(len(configs.tasks.get(name, ())))
    )
    return frozenset((*(Unit(connector=name) for name in configs.connectors), *tasks))


def seeds(files: Iterable[Mapping[str, str]], configs: WorkerConfigs) -> tuple[ConfigRecord, ...]:
    """The records for connectors that were given as files and are absent, or otherwise, in the topic."""
    return tuple(
        ConnectorConfig(connector=given["name"], properties=given)
        for given in files
        if configs.connectors.get(given["name"]) != given
    )


def named_tasks(report: ConnectorReport) -> tuple[Mapping[str, str], ...]:
    """The properties of its tasks with the class that Java starts."""
    return with_task_class(report.connector_class, report.task_properties)


def with_task_class(
    connector_class: str, tasks: Iterable[Mapping[str, str]]
) -> tuple[Mapping[str, str], ...]:
    """*tasks* of a connector of *connector_class*, with the class that Java starts."""
    task_class = _TASKS.get(simple_name(connector_class))
    if task_class is None:
        return tuple(tasks)
    return tuple({**properties, "task.class": f"{MIRROR_PACKAGE}{task_class}"} for properties in tasks)


def task_records(report: ConnectorReport, configs: WorkerConfigs) -> tuple[ConfigRecord, ...]:
    """The records for a connector's tasks, which Java would start from; none where the topic says the same."""
    return new_tasks(report.name, report.task_properties, configs)


def new_tasks(
    name: str, tasks: Sequence[Mapping[str, str]], configs: WorkerConfigs
) -> tuple[ConfigRecord, ...]:
    """The records that say that connector *name* has *tasks*; none where the topic says the same."""
    if configs.tasks.get(name) == tuple(tasks) and name not in configs.inconsistent:
        return ()
    return (
        *(
            TaskConfig(connector=name, task=number, properties=properties)
            for number, properties in enumerate(tasks)
        ),
        TasksCommit(connector=name, tasks=len(tasks)),
    )


def statuses(
    reports: Sequence[ConnectorReport], *, generation: int, version: str
) -> dict[bytes, WorkerStatus]:
    """How connectors and tasks fare, by the key of the record that says so."""
    found: dict[bytes, WorkerStatus] = {}
    for report in reports:
        said = [(None, report.state, report.trace), *((t.task, t.state, t.trace) for t in report.tasks)]
        for task, state, trace in said:
            status = WorkerStatus(
                connector=report.name,
                task=task,
                state=State(state) if state in _STATES else State.UNASSIGNED,
                worker_id=report.worker_id,
                generation=generation,
                trace=trace or None if state == State.FAILED.value else None,
                version=version,
            )
            found[status.key] = status
    return found


def _must_exist(name: str, configs: WorkerConfigs, sentence: str) -> None:
    if name not in configs.connectors:
        raise ConnectError(404, sentence.format(name))
