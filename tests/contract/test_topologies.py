"""Each topology of examples: its MirrorFlows are valid, run together, and are its mm2.properties in the other form."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands.convert import converted, yaml_text
from mirrorflow_cli.commands.export import exported, text
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.plan.properties import POD_LAYOUT
from tests.unit.cli.effective_settings import effective

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/mm2.properties"))
Result = tuple[int, str, str]


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command: (exit status, stdout, stderr)."""

    def call(*arguments: str) -> Result:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def flags(folder: Path) -> list[str]:
    return [flag for path in sorted(folder.glob("*.yaml")) for flag in ("-f", str(path))]


def test_every_topology_is_in_the_list() -> None:
    """Readers cannot find a folder that the list omits."""
    named = re.findall(r"^\| \[([\w-]+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)

    assert sorted(named) == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_are_the_conversion_of_the_properties(folder: Path) -> None:
    """By text, so that a change of the conversion is seen in review; `mirrorflow convert -o` writes them anew."""
    documents = converted((folder / "mm2.properties").read_text(), ConversionFindings())

    assert {f"{one['metadata']['name']}.yaml": yaml_text(one) for one in documents} == {
        path.name: path.read_text() for path in folder.glob("*.yaml")
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_export_to_the_settings_of_the_properties(folder: Path) -> None:
    """All of them in one mm2.properties."""
    flows = [load_flow(path.read_text()) for path in sorted(folder.glob("*.yaml"))]

    out = exported(flows, POD_LAYOUT)

    assert [] == out.losses
    before, after = effective((folder / "mm2.properties").read_text()), effective(text(out.lines))
    # MM2 emits heartbeats between any two clusters of a file, MirrorFlows only where a flow is; conversion says so.
    assert {key.partition(".")[1:] for key in before.keys() - after.keys()} <= {
        key.partition(".")[1:] for key in before if ".heartbeat." in key or "HeartbeatConnector" in key
    }
    assert {key: before.get(key) for key in after} == after


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_files_are_valid_and_their_plan_has_no_conflict(
    folder: Path, mirrorflow: Callable[..., Result]
) -> None:
    """What a reader of the examples does first."""
    for path in folder.glob("*.yaml"):
        assert 0 == mirrorflow("validate", "-f", str(path))[0]

    status, out, err = mirrorflow("plan", "--offline", *flags(folder))

    assert (0, "") == (status, err)
    count = len(flags(folder)) // 2
    assert count == 1 or out.endswith(f"# {count} flows: no loop, and no topic that two of them write to\n")


def test_the_identity_example_there_and_back_is_a_loop(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """What its comment says: the way back would copy the copies. Status 1, before anything runs."""
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


def test_two_files_with_one_name_are_refused(mirrorflow: Callable[..., Result]) -> None:
    """One of them would be passed over."""
    path = str(EXAMPLES / "identity" / "old-to-new.yaml")

    assert (
        2,
        "",
        "Two files contain a flow named old-to-new; give each its own metadata.name.\n",
    ) == mirrorflow("plan", "--offline", "-f", path, "-f", path)


def test_clusters_that_cannot_be_reached_are_told_apart_by_addresses(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """The plan continues, and states what it is based on."""
    paths = []
    for name in ("a-to-b", "b-to-c"):
        text_ = (EXAMPLES / "chain-of-three" / f"{name}.yaml").read_text()
        for port, alias in enumerate("abc", 1):
            text_ = text_.replace(f"kafka-{alias}:9092", f"127.0.0.1:{port}")
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(text_)

    status, out, _ = mirrorflow("plan", "-f", str(paths[0]), "-f", str(paths[1]))

    assert 1 == status  # as topics could not be listed
    for alias in "abc":
        assert (
            f"# {alias} is compared with other clusters by its addresses only. Cluster {alias} cannot be reached"
            in out
        )
