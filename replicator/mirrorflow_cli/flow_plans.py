"""Plans flows and refuses settings that their connectors would refuse; every command validates with it.

It makes no network connections and reads no secrets: a value with a reference is accepted.
"""

from collections.abc import Iterator, Sequence

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.settings import worker_settings
from mirrorflow_core.errors import SettingError
from mirrorflow_kafka.client.client_check import ClientSettingError, check_client, clients_of
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorPlan, Plan, plan
from mirrorflow_replicator.http.validation import problems


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
