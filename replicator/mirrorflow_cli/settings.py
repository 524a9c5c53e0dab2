"""Parses a planned connector's properties as its process does: the same text through the same reader.

So `plan` and `check` find what `run` would find, including unknown and refused properties.
"""

from mirrorflow_cli.errors import FailedError
from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.settings import (
    CheckpointSettings,
    HeartbeatSettings,
    SourceSettings,
    WorkerSettings,
)
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan
from mirrorflow_replicator.config.worker import load_standalone


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
