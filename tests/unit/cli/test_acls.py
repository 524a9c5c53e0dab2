"""`mirrorflow acls` of flows that are told otherwise: naming, places, and connectors that do not run."""

from pathlib import Path

import pytest
import yaml

from mirrorflow_cli.__main__ import main

SMALLEST = Path(__file__).parents[2] / "examples" / "valid" / "smallest.yaml"


def printed(folder: Path, capsys: pytest.CaptureFixture[str], **spec: object) -> dict[str, list[str]]:
    """Heading -> what is granted there: kind, name, operations."""
    document = yaml.safe_load(SMALLEST.read_text())
    document["spec"] |= {"topics": {"include": ["orders"]}, "groups": {"include": ["readers"]}, **spec}
    file = folder / "flow.yaml"
    file.write_text(yaml.safe_dump(document))
    assert 0 == main(["acls", "-f", str(file)])
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("# "):
            heading = line[2:].rpartition(" ")[0]
            continue
        words = line.split()
        kind, name = words[words.index("--operation") :][-2:] if "prefixed" not in line else words[-4:-2]
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        found.setdefault(heading, []).append(f"{kind[2:]} {name} {'+'.join(operations)}")
    return found


def test_each_connector_is_granted_what_it_needs_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group is read on the source by Describe; on the target it is moved by Read."""
    found = printed(tmp_path, capsys)

    assert ["topic orders Describe", "group readers Describe"] == found["MirrorCheckpointConnector, source"]
    assert "group readers Read+Describe" in found["MirrorCheckpointConnector, target"]
    assert ["topic heartbeats Create+Write+Describe"] == found["MirrorHeartbeatConnector, source"]
    assert ["topic heartbeats Create+Write+Describe"] == found["MirrorHeartbeatConnector, target"]


@pytest.mark.parametrize(
    ("spec", "lacks"),
    [
        ({"groups": {"include": []}}, "MirrorCheckpointConnector"),
        ({"heartbeats": {"emitTo": []}}, "MirrorHeartbeatConnector"),
        ({"heartbeats": {"emitTo": ["Target"]}}, "MirrorHeartbeatConnector, source"),
    ],
)
def test_what_does_not_run_is_granted_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, object], lacks: str
) -> None:
    """Nor is the side that nothing is written to."""
    assert not [heading for heading in printed(tmp_path, capsys, **spec) if heading.startswith(lacks)]


def test_groups_that_are_only_translated_are_not_touched_on_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without syncOffsets no right on them is asked for."""
    found = printed(tmp_path, capsys, groups={"include": ["readers"], "syncOffsets": False})

    assert not [grant for grant in found["MirrorCheckpointConnector, target"] if grant.startswith("group")]


def test_heartbeats_have_a_name_of_their_own_where_copies_keep_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Identity naming: their copies are prefixed all the same, and would otherwise be refused."""
    topics = {"include": ["orders"], "naming": {"policy": "Identity"}}

    found = printed(tmp_path, capsys, topics=topics, offsetSyncs={"location": "Source"})

    target = [grant for grant in found["MirrorSourceConnector, target"] if "heartbeats" in grant]
    alias = yaml.safe_load(SMALLEST.read_text())["spec"]["source"]["alias"]
    assert [f"topic {alias}.heartbeats"] == [grant.rpartition(" ")[0] for grant in target]
    assert any("offset-syncs" in grant for grant in found["MirrorCheckpointConnector, source"])


def test_pods_that_share_a_connectors_work_are_granted_their_group_and_its_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single pod joins no group."""
    connectors = {"source": {"replicas": 2}, "checkpoint": {"replicas": 2, "config": {"group.id": "mine"}}}
    alone, several = (
        printed(tmp_path, capsys, connectors=spec) for spec in ({"source": {"replicas": 1}}, connectors)
    )

    topic = "Create+Write+Read+Describe+DescribeConfigs"
    assert {
        "group east-mm2-source Read+Describe",
        f"topic mm2-configs.east.source.internal {topic}",
        f"topic mm2-status.east.source.internal {topic}",
    } == set(several["MirrorSourceConnector, target"]) - set(alone["MirrorSourceConnector, target"])
    assert "group mine Read+Describe" in several["MirrorCheckpointConnector, target"]
