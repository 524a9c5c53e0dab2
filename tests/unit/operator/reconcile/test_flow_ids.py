"""The id of a flow claims its source alias on the target.

It is pinned and includes the id of the Kubernetes cluster.
"""

import pytest

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.cluster.client import CONFIG_MAP, JOB, MIRROR_FLOW, SERVICE_ACCOUNT
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_replicator.config.worker_properties import load_standalone
from tests.unit.operator.observations import document
from tests.unit.operator.reconcile.test_passes import KEY, FlowSimulation


def properties(simulation: FlowSimulation, kind: str = "source") -> dict[str, str]:
    """Returns the connector's properties from the ConfigMap that the operator has written."""
    data = simulation.api.get(CONFIG_MAP, f"{KEY[1]}-{kind}")["data"]
    return dict(parse_properties(data["connector.properties"]))


def run(simulation: FlowSimulation, kubernetes_id: str | None) -> None:
    simulation.cache.kubernetes_id = kubernetes_id
    simulation.run()


def test_the_same_manifest_in_two_kubernetes_clusters_has_two_flow_ids() -> None:
    flow_ids = []
    for cluster in ("uid-1", "uid-2"):
        simulation = FlowSimulation()
        simulation.write(seed={"runId": "1"})
        run(simulation, cluster)
        jobs = [
            body["data"] for (kind, _, _), body in simulation.api.objects.items() if kind == CONFIG_MAP.name
        ]
        seed_properties = next(data["source.properties"] for data in jobs if "source.properties" in data)
        status = simulation.api.get(MIRROR_FLOW, KEY[1])["status"]
        ids = {
            properties(simulation)["mirrorflow.flow"],
            parse_properties(seed_properties)["mirrorflow.flow"],
        }
        flow_ids.append((ids, status["flowId"]))

    first, second = "east-to-west@mirrors.uid-1", "east-to-west@mirrors.uid-2"
    assert flow_ids == [({first}, first), ({second}, second)]


def test_a_flow_id_is_pinned_at_the_first_start() -> None:
    """The permission to read the UID of kube-system may change later."""
    simulation = FlowSimulation()
    simulation.write()
    run(simulation, None)
    simulation.start("1.1.0")
    run(simulation, "uid-1")

    assert properties(simulation)["mirrorflow.flow"] == "east-to-west@mirrors"


def overwrite_status(
    simulation: FlowSimulation, status: dict[str, object], *, annotations: bool = False
) -> None:
    """Replaces the status, as another client may. *annotations* keeps the pins of the ServiceAccount."""
    flow = simulation.api.get(MIRROR_FLOW, KEY[1])
    simulation.api.store(MIRROR_FLOW, {**flow, "status": status}, is_watched=True)
    account = simulation.api.get(SERVICE_ACCOUNT, KEY[1])
    if not annotations:
        account["metadata"]["annotations"] = {}
        simulation.api.store(SERVICE_ACCOUNT, account, is_watched=True)


def test_a_flow_of_an_earlier_release_has_its_name_as_id() -> None:
    """The files of its pods contain the id. A new id would replace its pods on an upgrade."""
    simulation = FlowSimulation()
    simulation.write()
    run(simulation, "uid-1")
    files = simulation.api.get(CONFIG_MAP, f"{KEY[1]}-source")
    files["data"]["connector.properties"] = "mirrorflow.flow = east-to-west\n"
    simulation.api.store(CONFIG_MAP, files, is_watched=True)
    overwrite_status(simulation, {"version": "1.1.0"})
    run(simulation, "uid-1")

    assert properties(simulation)["mirrorflow.flow"] == "east-to-west"


@pytest.mark.parametrize(
    "status",
    [{}, {"version": "1.1.0"}, {"version": "9.9", "flowId": "other@namespace", "observedGeneration": 1}],
    ids=["wiped", "pruned", "foreign"],
)
def test_pinned_id_and_version_are_kept_if_the_status_is_lost(status: dict[str, object]) -> None:
    """The flow gets neither a new id nor a new version."""
    simulation = FlowSimulation()
    simulation.write()
    run(simulation, "uid-1")
    simulation.start("1.2.0", "1.1.0")
    overwrite_status(simulation, status, annotations=True)
    run(simulation, "uid-2")

    status_after = simulation.api.get(MIRROR_FLOW, KEY[1])["status"]
    assert ("east-to-west@mirrors.uid-1", "1.1.0") == (status_after["flowId"], status_after["version"])
    assert properties(simulation)["mirrorflow.flow"] == "east-to-west@mirrors.uid-1"


def test_a_flow_id_is_restored_after_an_older_operator_removed_it() -> None:
    """An older operator does not know flow ids.

    It removes the id from the status and writes the flow's name into the files.
    """
    simulation = FlowSimulation()
    simulation.write()
    run(simulation, "uid-1")
    files = simulation.api.get(CONFIG_MAP, f"{KEY[1]}-source")
    files["data"]["connector.properties"] = "mirrorflow.flow = east-to-west\n"
    simulation.api.store(CONFIG_MAP, files, is_watched=True)
    overwrite_status(simulation, {"version": "1.1.0"}, annotations=True)
    run(simulation, "uid-1")

    assert properties(simulation)["mirrorflow.flow"] == "east-to-west@mirrors.uid-1"


@pytest.mark.parametrize(
    "status", [{}, {"seed": {"runId": "0", "phase": "Failed"}}], ids=["wiped", "foreign"]
)
def test_an_ended_seed_does_not_run_again_if_its_status_is_lost(status: dict[str, object]) -> None:
    """This holds even if its Job was deleted as well."""
    simulation = FlowSimulation()
    simulation.write(seed={"runId": "1"}, verify={"runId": "1"})
    for _ in range(2):
        run(simulation, "uid-1")
        simulation.end_job()
    for _ in range(2):
        run(simulation, "uid-1")
    for job_key in [key for key in simulation.api.objects if key[0] == JOB.name]:
        simulation.cache.handle_event(JOB, "DELETED", simulation.api.objects.pop(job_key))
    overwrite_status(simulation, status, annotations=True)
    run(simulation, "uid-1")

    assert not [key for key in simulation.api.objects if key[0] == JOB.name]
    assert ("1", "Succeeded") == tuple(
        simulation.api.get(MIRROR_FLOW, KEY[1])["status"]["seed"][name] for name in ("runId", "phase")
    )


def test_a_flow_id_in_the_spec_is_used() -> None:
    """A flow converted from an mm2.properties keeps its id."""
    simulation = FlowSimulation()
    simulation.write(connectors={"source": {"config": {"mirrorflow.flow": "A->B"}}})
    run(simulation, "uid-1")

    assert simulation.api.get(MIRROR_FLOW, KEY[1])["status"]["flowId"] == "A->B"
    assert properties(simulation)["mirrorflow.flow"] == "A->B"


def test_take_over_from_is_passed_to_the_source_connector() -> None:
    simulation = FlowSimulation()
    simulation.write(takeOverFrom=["renamed@mirrors.uid-1", "A->B"])
    run(simulation, "uid-1")

    data = simulation.api.get(CONFIG_MAP, "east-to-west-source")["data"]
    settings = load_standalone(data["worker.properties"], [data["connector.properties"]]).connectors[0]
    assert settings.source is not None
    assert settings.source.takes_over == ("renamed@mirrors.uid-1", "A->B")


@pytest.mark.parametrize(
    "spec", [{"takeOverFrom": ["a,b"]}, {"takeOverFrom": ["a", "a"]}, {"takeOverFrom": [""]}]
)
def test_an_invalid_id_in_take_over_from_is_refused(spec: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidSpecError, match="takeOverFrom"):
        parse_flow(document(**spec))


def test_a_config_entry_for_take_over_from_is_refused() -> None:
    config = {"source": {"config": {"mirrorflow.takeover.from": "a"}}}

    with pytest.raises(InvalidSpecError, match=r"use spec\.takeOverFrom"):
        parse_flow(document(connectors=config))
