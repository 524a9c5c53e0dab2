"""Which groups a checkpoint connector follows where an expression takes too long."""

import asyncio
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.checkpoints import Group
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.known_offsets import OffsetReaders

CONNECTOR = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:1
groups=g-(a|a)*
"""
SLOW = "g-" + "a" * 60 + "-1"


@pytest.fixture
def passes() -> CheckpointPasses:
    worker = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR])
    (settings,) = worker.connectors
    assert settings.checkpoint is not None
    cluster = create_autospec(Cluster, instance=True)
    return CheckpointPasses(
        settings.checkpoint,
        OffsetReaders(source=cluster, syncs=cluster, target=cluster, reader=cluster),
        cluster,
    )


def refresh(passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch, *names: str) -> int:
    """The number of groups that are followed after the source lists *names*."""

    async def listed(_: Cluster) -> dict[str, Group]:
        return {name: Group(name=name, protocol_type="consumer") for name in names}

    monkeypatch.setattr(groups, "list_groups", listed)
    asyncio.run(passes.refresh())
    return passes.report.selected


def test_known_groups_are_still_followed(passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch):
    assert refresh(passes, monkeypatch, "g-a") == 1

    assert refresh(passes, monkeypatch, "g-a", SLOW) == 1

    (warning,) = passes.warnings
    assert warning.startswith(
        f"The list of groups is not refreshed: groups: 'g-(a|a)*' cannot be matched against '{SLOW[:60]}"
    )


def test_without_known_groups_it_is_the_connectors_problem(
    passes: CheckpointPasses, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidSettingError, match=r"^groups: "):
        refresh(passes, monkeypatch, SLOW)
