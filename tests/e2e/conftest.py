"""Fixtures of the end-to-end tests. All tests share one node, two secured Kafka clusters and one release, but no flow.

A test that breaks a shared part repairs it before its end.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.story import QUICKLY
from tests.harness.kubernetes.images import VERSION, build
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import FLOWS, Stage, require_stage

# Differs from that of `make cluster` and of the harness's own tests.
NAME, NETWORK = "mirrorflow-e2e", 243
VALUES: dict[str, Any] = {
    "pollSeconds": 1,
    "replicas": 1,
    "seed": {"namespaces": [FLOWS]},
}

# The first test also starts the node, the release and both clusters. That takes a minute on an idle machine and five on
# a busy one. Each of these steps has its own limit.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets the timeout of the tests of this folder to `TIMEOUT_S`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The `Stage` that all tests of this folder share."""
    skip_without(require_stage)
    folder = tmp_path_factory.mktemp("stage")
    with Stage(folder=folder, name=NAME, network=NETWORK, values=VALUES) as stage:
        yield stage


@pytest.fixture(scope="package")
def seed_image(stage: Stage) -> str:
    """Returns the name of the image of Spark jobs, loaded into the node.

    Only tests that need its 440 MB use this fixture.
    """
    image = build("seed", version=VERSION)
    stage.cluster.load(image.archive)
    return image.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the state of the cluster to the report of a failure, because the cluster no longer exists after the run."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.failed and isinstance(stage, Stage):
        report.sections.append(("State of the cluster", stage.described()))
    return report


@pytest.fixture
def make_flow(stage: Stage) -> Iterator[Callable[..., str]]:
    """Returns a function that creates a flow whose source alias is its name.

    *spec* is as in `Stage.flow`. The flow is deleted later.
    """
    created: list[str] = []

    def make(name: str, topics: list[str], **spec: Any) -> str:
        resource = stage.flow(name, topics, **QUICKLY)
        resource["spec"]["source"]["alias"] = name
        resource["spec"] |= spec
        created.append(name)
        stage.apply(resource)
        return name

    yield make
    for name in created:
        stage.delete(name)


@pytest.fixture
def ready_flow(stage: Stage, make_flow: Callable[..., str]) -> Callable[..., str]:
    """Returns a function that creates a topic and a flow for it, waits until the flow is Ready, and returns the flow's
    name.
    """

    def make(name: str, topic: str, *, partitions: int = 1) -> str:
        stage.east.create_topic(topic, partitions=partitions)
        make_flow(name, [topic])
        stage.wait_for(name, "Ready")
        return name

    return make
