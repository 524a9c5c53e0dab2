"""`mirrorflow acls` for flows with other naming, topic locations and connectors than the defaults."""

import json
from pathlib import Path

import pytest
import yaml

from mirrorflow_cli.__main__ import main

SMALLEST = Path(__file__).parents[3] / "examples" / "valid" / "smallest.yaml"


def grants(folder: Path, capsys: pytest.CaptureFixture[str], **spec: object) -> dict[str, list[str]]:
    """Maps each heading to its grants, such as `topic orders Read+Describe`."""
    document = yaml.safe_load(SMALLEST.read_text())
    document["spec"] |= {"topics": {"include": ["orders"]}, "groups": {"include": ["readers"]}, **spec}
    file = folder / "flow.yaml"
    file.write_text(yaml.safe_dump(document))
    assert 0 == main(["acls", "-f", str(file)])
    by_heading: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("# Optional: "):
            continue
        if line.startswith("# "):
            heading = line[2:].rpartition(" ")[0]
            continue
        arguments = line.split()
        kind, name = (
            arguments[arguments.index("--operation") :][-2:] if "prefixed" not in line else arguments[-4:-2]
        )
        operations = [arguments[index + 1] for index, word in enumerate(arguments) if word == "--operation"]
        by_heading.setdefault(heading, []).append(f"{kind[2:]} {name} {'+'.join(operations)}")
    return by_heading


def test_each_connector_is_granted_only_the_operations_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets of a group are read with Describe on the source, and committed with Read on the target."""
    granted = grants(tmp_path, capsys)

    assert [
        "topic orders Describe",
        "group readers Describe",
        "topic __consumer_offsets Read+Describe",
    ] == granted["MirrorCheckpointConnector, source"]
    assert "group readers Read+Describe" in granted["MirrorCheckpointConnector, target"]
    assert ["topic heartbeats Create+Write+Describe"] == granted["MirrorHeartbeatConnector, source"]
    assert ["topic heartbeats Create+Write+Describe"] == granted["MirrorHeartbeatConnector, target"]


@pytest.mark.parametrize(
    ("spec", "lacks"),
    [
        ({"groups": {"include": []}}, "MirrorCheckpointConnector"),
        ({"heartbeats": {"emitTo": []}}, "MirrorHeartbeatConnector"),
        ({"heartbeats": {"emitTo": ["Target"]}}, "MirrorHeartbeatConnector, source"),
    ],
)
def test_connectors_that_do_not_run_are_granted_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, object], lacks: str
) -> None:
    """A cluster to which nothing is written is not listed either."""
    assert not [heading for heading in grants(tmp_path, capsys, **spec) if heading.startswith(lacks)]


def test_groups_need_no_grant_on_the_target_without_sync_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    granted = grants(tmp_path, capsys, groups={"include": ["readers"], "syncOffsets": False})

    assert not [grant for grant in granted["MirrorCheckpointConnector, target"] if grant.startswith("group")]


def test_copied_heartbeats_are_prefixed_with_identity_naming(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a grant for the prefixed name they would be refused."""
    topics = {"include": ["orders"], "naming": {"policy": "Identity"}}

    granted = grants(tmp_path, capsys, topics=topics, offsetSyncs={"location": "Source"})

    target = [grant for grant in granted["MirrorSourceConnector, target"] if "heartbeats" in grant]
    alias = yaml.safe_load(SMALLEST.read_text())["spec"]["source"]["alias"]
    assert [f"topic {alias}.heartbeats"] == [grant.rpartition(" ")[0] for grant in target]
    assert any("offset-syncs" in grant for grant in granted["MirrorCheckpointConnector, source"])


ROUTER = {
    "transforms": "moved",
    "transforms.moved.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.moved.regex": r"(?:[a-z]+\.)?(orders.*)",
    "transforms.moved.replacement": "moved-$1",
}


@pytest.mark.parametrize("policy", ["Prefix", "Identity"])
def test_a_copy_that_a_regex_router_renames_is_granted_by_its_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    """Heartbeats keep the name of the policy, and no other topic of the target is granted."""
    alias = yaml.safe_load(SMALLEST.read_text())["spec"]["source"]["alias"]
    topics = {"include": ["orders"], "naming": {"policy": policy}}

    granted = grants(tmp_path, capsys, topics=topics, connectors={"source": {"config": ROUTER}})

    copies = [
        name
        for grant in granted["MirrorSourceConnector, target"]
        for kind, name, _ in [grant.split()]
        if kind == "topic" and not name.endswith(".internal")
    ]
    assert ["moved-orders", f"{alias}.heartbeats"] == copies
    assert "topic orders Read+Describe+DescribeConfigs" in granted["MirrorSourceConnector, source"]
    assert "topic moved-orders Read+Describe" in granted["MirrorCheckpointConnector, target"]


def test_all_topics_of_the_target_are_granted_if_a_regex_router_renames_by_an_expression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which names its replacement makes of a prefix is not known."""
    topics = {"include": ["orders.*"]}

    granted = grants(tmp_path, capsys, topics=topics, connectors={"source": {"config": ROUTER}})

    names = [grant.split()[1] for grant in granted["MirrorSourceConnector, target"]]
    assert "'*'" == names[0]
    assert not [name for name in names if name.endswith("heartbeats")]


def test_connectors_with_several_pods_are_granted_their_group_and_its_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single pod joins no group."""
    connectors = {"source": {"replicas": 2}, "checkpoint": {"replicas": 2, "config": {"group.id": "mine"}}}
    one_pod, several_pods = (
        grants(tmp_path, capsys, connectors=spec) for spec in ({"source": {"replicas": 1}}, connectors)
    )

    topic = "Create+Write+Read+Describe+DescribeConfigs"
    assert {
        "group east-mm2-source Read+Describe",
        f"topic mm2-configs.east.source.internal {topic}",
        f"topic mm2-status.east.source.internal {topic}",
    } == set(several_pods["MirrorSourceConnector, target"]) - set(one_pod["MirrorSourceConnector, target"])
    assert "group mine Read+Describe" in several_pods["MirrorCheckpointConnector, target"]


def test_acls_of_a_pair_cover_both_flows_and_the_diverged_command(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Applications may leave either member in a switchover, so both have the same grants."""
    assert 0 == main(["acls", "-f", str(pair)])
    headings: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("# "):
            own = headings.setdefault(line[2:], [])
        else:
            own.append(line.partition("--allow-principal ")[2])

    assert {"MirrorSourceConnector, target west", "MirrorSourceConnector, target east"} <= {*headings}
    for member in ("east", "west"):
        assert [
            "User:mirrorflow --operation Describe --operation Alter --cluster",
            "User:mirrorflow --operation Create --operation Write --operation Read --operation Describe --operation DescribeConfigs --topic mm2-switchovers.internal",
            "User:mirrorflow --operation Write --operation Describe --transactional-id mirrorflow:switchover:east-west",
            "User:mirrorflow --operation Read --operation Describe --operation DescribeConfigs --topic orders",
            "User:mirrorflow --operation Create --operation Write --operation Read --operation Describe --operation DescribeConfigs --topic orders.diverged. --resource-pattern-type prefixed",
            "User:mirrorflow --operation Create --operation Write --operation Read --operation Describe --operation DescribeConfigs --topic mm2-diverged-tails.internal",
            "User:mirrorflow --operation Write --operation Describe --transactional-id mirrorflow:diverged: --resource-pattern-type prefixed",
        ] == headings[f"mirrorflow diverged, {member}"]


def test_a_pair_has_the_grants_of_a_switchover_for_each_member_and_its_probe(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grants cover the canary topic, the ends of open transactions, and the groups on either side."""
    assert 0 == main(["acls", "-f", str(pair), "--json"])

    document = json.loads(capsys.readouterr().out)
    for member in ("east", "west"):
        granted = {
            (acl["resourceType"], acl["resourceName"]): (*acl["operations"], acl["optional"])
            for acl in document["switchover"]
            if acl["cluster"] == member
        }
        assert ("Describe", "Alter", False) == granted["cluster", "kafka-cluster"]
        assert ("Create", "Write", "Describe", False) == granted["topic", "mm2-switchover-canary.internal"]
        assert ("Describe", True) == granted["transactional-id", "*"]
        assert ("Read", "Describe", False) == granted["group", "*"]
    sources = {
        acl["resourceName"]: acl["optional"]
        for acl in document["flows"][0]["acls"]
        if acl["resourceName"].startswith("mm2-claims.")
    }
    assert {"mm2-claims.west.internal": True, "mm2-claims.east.internal": False} == sources


def test_a_pair_without_acls_as_a_fence_needs_no_right_to_alter_the_cluster(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.write_text(pair.read_text().replace("method: DenyAcl", "method: None"))

    assert 0 == main(["acls", "-f", str(pair), "--json"])

    document = json.loads(capsys.readouterr().out)
    assert ["east-to-west", "west-to-east"] == [flow["flow"] for flow in document["flows"]]
    assert {"east", "west"} == {grant["cluster"] for grant in document["diverged"]}
    assert "cluster" not in {grant["resourceType"] for grant in document["diverged"]}
