"""The id with which a flow claims its source alias on the target: pinned, and of one Kubernetes cluster."""

import pytest

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.cluster.client import CONFIG_MAP, JOB, MIRROR_FLOW, SERVICE_ACCOUNT
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_replicator.config.worker_properties import load_standalone
from tests.unit.operator.observations import document
from tests.unit.operator.reconcile.test_passes import KEY, Story


def properties(story: Story, kind: str = "source") -> dict[str, str]:
    """The connector's properties that the operator has written."""
    data = story.api.found(CONFIG_MAP, f"{KEY[1]}-{kind}")["data"]
    return dict(parse_properties(data["connector.properties"]))


def run(story: Story, kubernetes_id: str) -> None:
    story.cache.identify(kubernetes_id)
    story.run()


def test_one_manifest_in_two_kubernetes_clusters_is_two_flows() -> None:
    found = []
    for cluster in ("uid-1", "uid-2"):
        story = Story()
        story.write(seed={"runId": "1"})
        run(story, cluster)
        jobs = [body["data"] for (kind, _, _), body in story.api.objects.items() if kind == CONFIG_MAP.name]
        of_seed = next(data["source.properties"] for data in jobs if "source.properties" in data)
        status = story.api.found(MIRROR_FLOW, KEY[1])["status"]
        ids = {properties(story)["mirrorflow.flow"], parse_properties(of_seed)["mirrorflow.flow"]}
        found.append((ids, status["flowId"]))

    first, second = "east-to-west@mirrors.uid-1", "east-to-west@mirrors.uid-2"
    assert found == [({first}, first), ({second}, second)]


def test_an_id_is_pinned_at_the_first_start() -> None:
    """Whether the operator may read the UID of kube-system can change later."""
    story = Story()
    story.write()
    run(story, "")
    story.start("1.1.0")
    run(story, "uid-1")

    assert properties(story)["mirrorflow.flow"] == "east-to-west@mirrors"


def forget(story: Story, status: dict[str, object], *, annotations: bool = False) -> None:
    """Another writer replaces the status; without *annotations* an earlier release has left none."""
    flow = story.api.found(MIRROR_FLOW, KEY[1])
    story.api.store(MIRROR_FLOW, {**flow, "status": status}, seen=True)
    account = story.api.found(SERVICE_ACCOUNT, KEY[1])
    if not annotations:
        account["metadata"]["annotations"] = {}
        story.api.store(SERVICE_ACCOUNT, account, seen=True)


def test_a_flow_of_an_earlier_release_keeps_its_name_as_its_id() -> None:
    """Another id would replace its pods when the operator is upgraded: the files of its pods have it."""
    story = Story()
    story.write()
    run(story, "uid-1")
    files = story.api.found(CONFIG_MAP, f"{KEY[1]}-source")
    files["data"]["connector.properties"] = "mirrorflow.flow = east-to-west\n"
    story.api.store(CONFIG_MAP, files, seen=True)
    forget(story, {"version": "1.1.0"})
    run(story, "uid-1")

    assert properties(story)["mirrorflow.flow"] == "east-to-west"


@pytest.mark.parametrize(
    "status",
    [{}, {"version": "1.1.0"}, {"version": "9.9", "flowId": "another@place", "observedGeneration": 1}],
    ids=["wiped", "pruned", "foreign"],
)
def test_what_is_pinned_survives_a_lost_status(status: dict[str, object]) -> None:
    """Neither the id nor the version is replaced by that of a new flow, nor by its bare name."""
    story = Story()
    story.write()
    run(story, "uid-1")
    story.start("1.2.0", "1.1.0")
    forget(story, status, annotations=True)
    run(story, "uid-2")

    found = story.api.found(MIRROR_FLOW, KEY[1])["status"]
    assert ("east-to-west@mirrors.uid-1", "1.1.0") == (found["flowId"], found["version"])
    assert properties(story)["mirrorflow.flow"] == "east-to-west@mirrors.uid-1"


def test_an_id_that_an_older_operator_has_written_over_is_found_again() -> None:
    """Rolled back, it knows no ids: it takes them out of the status, and writes the flow's name into the files."""
    story = Story()
    story.write()
    run(story, "uid-1")
    files = story.api.found(CONFIG_MAP, f"{KEY[1]}-source")
    files["data"]["connector.properties"] = "mirrorflow.flow = east-to-west\n"
    story.api.store(CONFIG_MAP, files, seen=True)
    forget(story, {"version": "1.1.0"}, annotations=True)
    run(story, "uid-1")

    assert properties(story)["mirrorflow.flow"] == "east-to-west@mirrors.uid-1"


@pytest.mark.parametrize(
    "status", [{}, {"seed": {"runId": "0", "phase": "Failed"}}], ids=["wiped", "foreign"]
)
def test_a_seed_that_has_ended_does_not_run_again_after_its_status_is_lost(status: dict[str, object]) -> None:
    """Nor when its Job has been deleted as well."""
    story = Story()
    story.write(seed={"runId": "1"}, verify={"runId": "1"})
    for _ in range(2):
        run(story, "uid-1")
        story.end_job()
    for _ in range(2):
        run(story, "uid-1")
    for found in [one for one in story.api.objects if one[0] == JOB.name]:
        story.cache.handle_event(JOB, "DELETED", story.api.objects.pop(found))
    forget(story, status, annotations=True)
    run(story, "uid-1")

    assert not [one for one in story.api.objects if one[0] == JOB.name]
    assert ("1", "Succeeded") == tuple(
        story.api.found(MIRROR_FLOW, KEY[1])["status"]["seed"][name] for name in ("runId", "phase")
    )


def test_an_id_in_the_spec_is_the_id() -> None:
    """A flow of an mm2.properties that was converted keeps its id."""
    story = Story()
    story.write(connectors={"source": {"config": {"mirrorflow.flow": "A->B"}}})
    run(story, "uid-1")

    assert story.api.found(MIRROR_FLOW, KEY[1])["status"]["flowId"] == "A->B"
    assert properties(story)["mirrorflow.flow"] == "A->B"


def test_flows_to_take_over_reach_the_source_connector() -> None:
    story = Story()
    story.write(takeOverFrom=["renamed@mirrors.uid-1", "A->B"])
    run(story, "uid-1")

    data = story.api.found(CONFIG_MAP, "east-to-west-source")["data"]
    settings = load_standalone(data["worker.properties"], [data["connector.properties"]]).connectors[0]
    assert settings.source is not None
    assert settings.source.takes_over == ("renamed@mirrors.uid-1", "A->B")


@pytest.mark.parametrize(
    "spec", [{"takeOverFrom": ["a,b"]}, {"takeOverFrom": ["a", "a"]}, {"takeOverFrom": [""]}]
)
def test_what_is_no_id_is_refused(spec: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidSpecError, match="takeOverFrom"):
        parse_flow(document(**spec))


def test_the_property_of_the_field_is_refused() -> None:
    config = {"source": {"config": {"mirrorflow.takeover.from": "a"}}}

    with pytest.raises(InvalidSpecError, match=r"use spec\.takeOverFrom"):
        parse_flow(document(connectors=config))
