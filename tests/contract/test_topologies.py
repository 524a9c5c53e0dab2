"""Each example topology has valid MirrorFlows that run together and are equivalent to its mm2.properties."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands.convert import converted, yaml_text
from mirrorflow_cli.commands.export import exported, text
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from tests.unit.cli.effective_settings import effective

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/mm2.properties"))
Result = tuple[int, str, str]


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Calls the command, and returns (exit status, stdout, stderr)."""

    def call(*arguments: str) -> Result:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def flags(folder: Path) -> list[str]:
    return [flag for path in sorted(folder.glob("*.yaml")) for flag in ("-f", str(path))]


def test_each_topology_is_listed_in_the_readme() -> None:
    named = re.findall(r"^\| \[([\w-]+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)

    assert sorted(named) == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_are_the_conversion_of_the_properties(folder: Path) -> None:
    """A change of the conversion is then visible in the diff. `mirrorflow convert -o` rewrites the files."""
    documents = converted((folder / "mm2.properties").read_text(), ConversionFindings())

    assert {f"{document['metadata']['name']}.yaml": yaml_text(document) for document in documents} == {
        path.name: path.read_text() for path in folder.glob("*.yaml")
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_export_to_the_settings_of_the_properties(folder: Path) -> None:
    """All flows of a topology are exported to one mm2.properties."""
    flows = [load_flow(path.read_text()) for path in sorted(folder.glob("*.yaml"))]

    export = exported(flows, POD_LAYOUT)

    assert [] == export.losses
    before, after = effective((folder / "mm2.properties").read_text()), effective(text(export.lines))
    # MM2 emits heartbeats between any two clusters of a file, but MirrorFlow only along a flow. The conversion reports
    # this.
    assert {key.partition(".")[1:] for key in before.keys() - after.keys()} <= {
        key.partition(".")[1:] for key in before if ".heartbeat." in key or "HeartbeatConnector" in key
    }
    assert {key: before.get(key) for key in after} == after


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_are_valid_and_their_plan_has_no_conflict(
    folder: Path, mirrorflow: Callable[..., Result]
) -> None:
    for path in folder.glob("*.yaml"):
        assert 0 == mirrorflow("validate", "-f", str(path))[0]

    status, out, err = mirrorflow("plan", "--offline", *flags(folder))

    assert (0, "") == (status, err)
    count = len(flags(folder)) // 2
    assert count == 1 or out.endswith(f"# {count} flows: no loop, and no topic that two of them write to\n")


def test_the_identity_example_with_a_reverse_flow_is_a_loop(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """A comment in the example explains that the reverse flow would copy the copies."""
    there = EXAMPLES / "identity" / "old-to-new.yaml"
    text_ = there.read_text().replace("old-to-new", "back")
    for before, after in (
        ("alias: old", "alias: x"),
        ("alias: new", "alias: old"),
        ("alias: x", "alias: new"),
    ):
        text_ = text_.replace(before, after)
    for before, after in (("kafka-old", "kafka-x"), ("kafka-new", "kafka-old"), ("kafka-x", "kafka-new")):
        text_ = text_.replace(before, after)
    back = tmp_path / "back.yaml"
    back.write_text(text_)

    status, _, err = mirrorflow("plan", "--offline", "-f", str(there), "-f", str(back))

    assert 1 == status
    assert err.startswith(
        "Flows old-to-new and back make a loop: any-topic on old -> any-topic on new (old-to-new) -> any-topic on old"
    )


def test_two_flows_with_the_same_name_are_refused(mirrorflow: Callable[..., Result]) -> None:
    """Otherwise one of them would be ignored."""
    path = str(EXAMPLES / "identity" / "old-to-new.yaml")

    assert (
        2,
        "",
        "Two files contain a flow named old-to-new; give each its own metadata.name.\n",
    ) == mirrorflow("plan", "--offline", "-f", path, "-f", path)


def test_unreachable_clusters_are_compared_by_address(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """The plan has a note that it compares only addresses."""
    paths = []
    for name in ("a-to-b", "b-to-c"):
        text_ = (EXAMPLES / "chain-of-three" / f"{name}.yaml").read_text()
        for port, alias in enumerate("abc", 1):
            text_ = text_.replace(f"kafka-{alias}:9092", f"127.0.0.1:{port}")
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(text_)

    status, out, _ = mirrorflow("plan", "-f", str(paths[0]), "-f", str(paths[1]))

    assert 1 == status  # because topics could not be listed
    for alias in "abc":
        assert (
            f"# {alias} is compared with other clusters by its addresses only. Cluster {alias} cannot be reached"
            in out
        )
