"""Decides what a worker stores in Connect's config and status topics, and what it runs. Pure.

`http.commands` parses the calls; `decide` checks them against the content of the config topic (`connect.worker_state`), with the
messages of AbstractHerder and DistributedHerder of Connect 4.3. No message contains a property's value.
`worker.distributed_herder` writes the records, reads them back and applies them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    ConnectorTarget,
    LogLevelRecord,
    TargetState,
    TaskConfig,
    TasksCommit,
    WorkerState,
    WorkerStatus,
)
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.config.connector_classes import simple_name, task_class
from mirrorflow_replicator.http.commands import (
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
    invalid_configuration,
)
from mirrorflow_replicator.version import connect_version

Problems = Callable[[str, Mapping[str, str]], Mapping[str, str]]
_STATES = frozenset(state.value for state in WorkerState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The desired state of one connector; another value means a restart."""

    properties: Mapping[str, str] = field(repr=False)
    target: TargetState = TargetState.STARTED
    run: int = 0  # counts the requested restarts


def decide(command: Command, configs: WorkerConfigs, problems: Problems) -> tuple[ConfigRecord, ...]:
    """Returns the records of *command*; none if it changes nothing that is stored. Raises ConnectError."""
    match command:
        case Configure(name=name, properties=properties, target=target):
            if name in configs.connectors and not command.may_exist:
                raise ConnectError(409, f"Connector {name} already exists")
            check(properties, problems)
            targets = () if target is None else (ConnectorTarget(connector=name, state=target),)
            return (*targets, ConnectorConfig(connector=name, properties=properties))
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
                # First, as in Java: its worker does not alter offsets while tasks exist, nor restart them.
                return TasksCommit(connector=name, tasks=0), wish
            return (wish,)
        case Restart(name=name) | RestartTask(name=name) | PutTasks(name=name) | Fence(name=name):
            _must_exist(name, configs, "Unknown connector: {}")
        case SetLevel(name=name, level=level):
            return (LogLevelRecord(namespace=name, level=level),)
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
    """Raises ConnectError with all problems of *properties*, in Connect's text around ours."""
    plugin = properties.get("connector.class")
    if not plugin:
        raise ConnectError(400, "Connector config contains no connector type")
    errors = dict(problems(simple_name(plugin), properties))
    name = properties.get("name", "")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        errors["name"] = "name: it contains control characters; write a name without them."
    elif any("\ud800" <= letter <= "\udfff" for letter in name):
        # It has no UTF-8, so no record can have it as its key.
        errors["name"] = "name: it contains half of a surrogate pair; write whole characters."
    if errors:
        raise invalid_configuration(errors.values())


def wanted(configs: WorkerConfigs, restarts: Mapping[str, int]) -> dict[str, Wanted]:
    """Returns the desired state of each connector; *restarts*: the number of requested restarts, by name."""
    return {
        name: Wanted(properties=properties, target=configs.target(name), run=restarts.get(name, 0))
        for name, properties in configs.connectors.items()
    }


def units(configs: WorkerConfigs) -> frozenset[Unit]:
    """Returns all units that a group assigns: connectors, and the tasks of those that are not stopped."""
    tasks = (
        Unit(connector=name, task=task)
        for name in configs.connectors
        if configs.target(name) is not TargetState.STOPPED
        for task in range(len(configs.tasks.get(name, ())))
    )
    return frozenset((*(Unit(connector=name) for name in configs.connectors), *tasks))


def seeds(files: Iterable[Mapping[str, str]], configs: WorkerConfigs) -> tuple[ConfigRecord, ...]:
    """Returns records for connectors from files that are missing in the topic, or different there."""
    return tuple(
        ConnectorConfig(connector=given["name"], properties=given)
        for given in files
        if configs.connectors.get(given["name"]) != given
    )


def with_task_class(
    connector_class: str, tasks: Iterable[Mapping[str, str]]
) -> tuple[Mapping[str, str], ...]:
    """Returns *tasks* of a connector of *connector_class*, with the class that Java starts."""
    name = task_class(connector_class)
    return tuple(tasks) if name is None else tuple({**properties, "task.class": name} for properties in tasks)


def new_tasks(
    name: str, tasks: Sequence[Mapping[str, str]], configs: WorkerConfigs
) -> tuple[ConfigRecord, ...]:
    """Returns the records that store *tasks* for connector *name*; none if the topic has the same."""
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
    reports: Iterable[ConnectorReport], *, worker_id: str, generation: int
) -> dict[bytes, WorkerStatus]:
    """Returns the statuses that a worker writes of connectors and tasks, by record key."""
    by_key: dict[bytes, WorkerStatus] = {}
    for report in reports:
        states = [(None, report.state, report.trace), *((t.task, t.state, t.trace) for t in report.tasks)]
        for task, state, trace in states:
            status = WorkerStatus(
                connector=report.name,
                task=task,
                state=WorkerState(state) if state in _STATES else WorkerState.UNASSIGNED,
                worker_id=worker_id,
                generation=generation,
                trace=trace if state == WorkerState.FAILED.value else None,
                version=connect_version(),
            )
            by_key[status.key] = status
    return by_key


def _must_exist(name: str, configs: WorkerConfigs, sentence: str) -> None:
    if name not in configs.connectors:
        raise ConnectError(404, sentence.format(name))
