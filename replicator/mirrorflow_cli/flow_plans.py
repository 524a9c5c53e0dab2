"""Plans flows and refuses settings that their connectors would refuse; every command validates with it.

It makes no network connections and reads no secrets: a value with a reference is accepted. Planned properties
are parsed as the connector's process does, so `plan` and `check` find what `run` would find.
"""

from collections.abc import Iterator, Sequence

from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.settings import (
    CheckpointSettings,
    HeartbeatSettings,
    SourceSettings,
    WorkerSettings,
)
from mirrorflow_kafka.security.client_security import ClientSettingError, check_client, clients_of
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan, plan
from mirrorflow_operator.plan.properties import SecretLayout
from mirrorflow_replicator.config.worker import load_standalone
from mirrorflow_replicator.http.rest_plugins import problems


def valid_plan(flow: MirrorFlow, layout: SecretLayout) -> Plan:
    """Returns the plan of *flow*. Raises UsageError like `valid_plans`."""
    return valid_plans([flow], layout)[0]


def valid_plans(flows: Sequence[MirrorFlow], layout: SecretLayout) -> list[Plan]:
    """Returns the plan of each flow. Raises UsageError with a line for each refused setting."""
    plans = [plan(flow, layout) for flow in flows]
    found = [
        f"{planned.flow}: {sentence}"
        for planned in plans
        for connector in planned.connectors
        for sentence in _refusals(connector)
    ]
    if found:
        raise UsageError("\n".join(dict.fromkeys(found)))
    return plans


def _refusals(connector: ConnectorPlan) -> Iterator[str]:
    """Yields a sentence for each refused setting; for settings that depend on each other, only the first."""
    field = f"spec.connectors.{connector_word(connector.kind)}"
    found = problems(
        connector.connector_properties["connector.class"].rpartition(".")[2],
        connector.connector_properties,
        connector.worker_properties,
    )
    if found:
        yield from (f"{field}: {sentence}" for sentence in found.values())
        return
    try:
        for client in clients_of(worker_settings(connector)):
            check_client(client)
    except ClientSettingError as error:
        yield str(error)  # The message names the cluster, and its settings are not in spec.connectors.
    except SettingError as error:
        yield f"{field}: {error}"


def worker_settings(connector: ConnectorPlan) -> WorkerSettings:
    """Returns the settings of the process of *connector*. Raises SettingError."""
    worker, own = (
        format_properties(connector.worker_properties),
        format_properties(connector.connector_properties),
    )
    return load_standalone(worker, [own])


def warnings_of(read: WorkerSettings) -> tuple[str, ...]:
    """Returns the warnings about the properties of a process and of its connectors."""
    own = (warning for connector in read.connectors for warning in connector.warnings)
    return tuple(dict.fromkeys((*read.warnings, *own)))


def source_settings(planned: Plan) -> tuple[SourceSettings, tuple[str, ...]]:
    """Returns the source connector's settings and its reader's warnings.

    Raises SettingError, and FailedError if the flow has no enabled source connector.
    """
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.SOURCE:
            read = worker_settings(connector)
            if read.connectors[0].source is not None:
                return read.connectors[0].source, warnings_of(read)
    raise FailedError(
        f"Flow {planned.flow} has no source connector that is enabled; spec.connectors.source.config says so."
    )


def companion_settings(
    planned: Plan,
) -> tuple[CheckpointSettings | None, HeartbeatSettings | None, tuple[str, ...]]:
    """Returns settings of the checkpoint and heartbeat connectors (None if not running), and warnings.

    Raises SettingError.
    """
    read = [worker_settings(one) for one in planned.connectors if one.kind is not ConnectorKind.SOURCE]
    connectors = [connector for worker in read for connector in worker.connectors]
    return (
        next((one.checkpoint for one in connectors if one.checkpoint is not None), None),
        next((one.heartbeat for one in connectors if one.heartbeat is not None), None),
        tuple(dict.fromkeys(warning for worker in read for warning in warnings_of(worker))),
    )
