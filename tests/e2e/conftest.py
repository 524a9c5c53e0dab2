"""One node, two secured Kafka clusters and one release that all tests of this folder share. Each test has flows of its own.

A test that breaks what is shared repairs it before its end.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.story import QUICKLY
from tests.harness.kubernetes.images import VERSION, build
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import FLOWS, Stage, require_stage

NAME, NETWORK = (
    "mirrorflow-e2e",
    243,
)  # beside a cluster of `make cluster`, and that of the harness's own tests
VALUES: dict[str, Any] = {
    "pollSeconds": 1,
    "replicas": 1,
    "seed": {"namespaces": [FLOWS]},
}

# The first test also starts the node, installs the release and starts both clusters: a minute on an idle machine, five where
# neighbours take most of the processors. Each of these steps has a limit of its own.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of this folder may take as long as `TIMEOUT_S`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """See `Stage`; it ends with the tests of this folder, however they end."""
    skip_without(require_stage)
    folder = tmp_path_factory.mktemp("stage")
    with Stage(folder=folder, name=NAME, network=NETWORK, values=VALUES) as stage:
        yield stage


@pytest.fixture(scope="package")
def seed_image(stage: Stage) -> str:
    """The name of the image of Spark jobs, which the node has: 440 MB that only they need."""
    image = build("seed", version=VERSION)
    stage.cluster.load(image.archive)
    return image.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside each failure stands what the cluster says of itself at that moment: afterwards it is gone."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.failed and isinstance(stage, Stage):
        report.sections.append(("What the cluster says", stage.described()))
    return report


@pytest.fixture
def make_flow(stage: Stage) -> Iterator[Callable[..., str]]:
    """Creates a flow whose source alias is its name, and deletes it after the test; *spec* as `Stage.flow` has it."""
    made: list[str] = []

    def make(name: str, topics: list[str], **spec: Any) -> str:
        resource = stage.flow(name, topics, **QUICKLY)
        resource["spec"]["source"]["alias"] = name
        resource["spec"] |= spec
        made.append(name)
        stage.apply(resource)
        return name

    yield make
    for name in made:
        stage.delete(name)


@pytest.fixture
def ready_flow(stage: Stage, make_flow: Callable[..., str]) -> Callable[..., str]:
    """Creates a topic and a flow that copies it; returns the flow's name when the flow is Ready."""

    def make(name: str, topic: str, *, partitions: int = 1) -> str:
        stage.east.create_topic(topic, partitions=partitions)
        make_flow(name, [topic])
        stage.wait_for(name, "Ready")
        return name

    return make
