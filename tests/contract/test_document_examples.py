"""Examples in the documentation are checked. Commands are parsed, flows are validated, and properties are read.

An example that cannot be checked has a comment `<!-- not checked: reason -->` above it.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands import command_parser
from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import load_flow, parse_flow, validated
from mirrorflow_operator.api.mirror_pair import PAIR_KIND, MirrorPair
from mirrorflow_operator.api.switchover import SWITCHOVER_KIND, Switchover
from mirrorflow_replicator.__main__ import _parser
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from mirrorflow_replicator.config.worker_properties import load_distributed, load_standalone
from tests.contract.markdown_blocks import Block, Command, blocks, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [command for block in BLOCKS for command in commands(block)]
SMALLEST = (ROOT / "tests" / "examples" / "valid" / "smallest.yaml").read_text()
# Commands for pages with a complete flow. They connect to no cluster and write nothing.
OFFLINE = {"validate": (), "plan": ("--offline",), "acls": (), "export": ()}
MM2 = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
WORKER = "bootstrap.servers = b:1\ngroup.id = x\noffset.storage.topic = x-offsets\nconfig.storage.topic = x-configs\nstatus.storage.topic = x-status\n"
CONNECTOR = (
    "name = m\nconnector.class = MirrorSourceConnector\nsource.cluster.alias = A\ntarget.cluster.alias = B\n"
    "source.cluster.bootstrap.servers = a:1\ntarget.cluster.bootstrap.servers = b:1\n"
)
READERS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "mm2.properties": lambda text: load_mm2(MM2 + text)[0].warnings,
    "connector.properties": lambda text: load_standalone(WORKER, [CONNECTOR + text]).warnings,
    "worker.properties": lambda text: load_distributed(WORKER + text, [CONNECTOR]).warnings,
}


def place(example: Block | Command) -> str:
    return example.place


def is_properties(block: Block) -> bool:
    """Returns whether each line is a key with a value."""
    if block.language:
        return block.language == "properties"
    lines = block.text.splitlines()
    return all("=" in line.partition(" ")[0] or line.partition(" ")[2].startswith("= ") for line in lines)


def is_yaml(block: Block) -> bool:
    return block.language == "yaml" or (
        not block.language and block.text.startswith(("spec:", "apiVersion:", "metadata:"))
    )


def flows(page: Path) -> list[str]:
    """Returns the complete MirrorFlows on *page*."""
    return [
        block.text
        for block in BLOCKS
        if block.page == page and is_yaml(block) and not block.unchecked and "kind: MirrorFlow" in block.text
    ]


def merged(into: Any, fragment: Any) -> Any:
    """Returns *into* with the fields of *fragment*."""
    if not isinstance(into, dict) or not isinstance(fragment, dict):
        return fragment
    return into | {key: merged(into.get(key), value) for key, value in fragment.items()}


@pytest.mark.parametrize("command", COMMANDS, ids=place)
def test_each_command_is_accepted_by_the_parser(command: Command) -> None:
    parser = command_parser({command.arguments[0]}) if command.program == "mirrorflow" else _parser()

    parser.parse_args(command.arguments)


@pytest.mark.parametrize("page", [page for page in PAGES if flows(page)], ids=lambda page: page.name)
@pytest.mark.parametrize("command", OFFLINE)
def test_each_complete_flow_is_accepted_by_the_commands(
    page: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in flows(page):
        file = tmp_path / "flow.yaml"
        file.write_text(text)

        status = main([command, *OFFLINE[command], "-f", str(file), "--secrets", str(tmp_path)])

        captured = capsys.readouterr()
        assert (0, False) == (status, "warning" in captured.out), captured.err
        assert load_flow(text).metadata.name


def test_convert_writes_the_files_that_the_page_uses_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/from-mm2.md converts flows between A and B in both directions."""
    monkeypatch.chdir(tmp_path)
    Path("mm2.properties").write_text(MM2 + "B->A.enabled = true\n")
    of_page = [command.arguments for command in COMMANDS if command.block.page.name == "from-mm2.md"]
    (convert,) = (arguments for arguments in of_page if arguments[0] == "convert")

    assert 0 == main(list(convert))

    files = {
        word for arguments in of_page for word in arguments if word.startswith("flows/") and word != "flows/"
    }
    assert files == set(capsys.readouterr().out.split())


@pytest.mark.parametrize("block", [block for block in BLOCKS if is_yaml(block)], ids=place)
def test_yaml_is_part_of_a_valid_flow_or_of_the_charts_values(block: Block) -> None:
    """A part of a flow is merged into the smallest flow. An indented part belongs to spec.connectors."""
    fragment: Any = yaml.safe_load(block.text)
    if block.unchecked:
        return
    if fragment.get("kind") == PAIR_KIND:
        validated(fragment, MirrorPair)
        return
    if fragment.get("kind") == SWITCHOVER_KIND:
        validated(fragment, Switchover)
        return
    if block.text.startswith("    "):
        fragment = {"spec": {"connectors": fragment}}
    if set(fragment) <= {"apiVersion", "kind", "metadata", "spec"}:
        parse_flow(merged(yaml.safe_load(SMALLEST), fragment))
    else:
        values = yaml.safe_load((ROOT / "charts" / "mirrorflow" / "values.yaml").read_text())
        assert [] == list(unknown(fragment, values))


def unknown(values: Mapping[str, Any], known: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Returns the keys of *values* that *known* does not have. An empty object in *known* accepts any key."""
    for key, value in values.items():
        if key not in known:
            yield f"{path}{key}"
        elif isinstance(value, dict) and known[key]:
            yield from unknown(value, known[key], f"{path}{key}.")


@pytest.mark.parametrize("block", [block for block in BLOCKS if is_properties(block)], ids=place)
def test_properties_are_known_in_one_of_the_files(block: Block) -> None:
    """The reader of that file accepts each line without a warning."""
    text = block.text.replace("= ...", "= host:1")
    assert parse_properties(text)
    if block.unchecked:
        return
    problems: dict[str, object] = {}
    for name, read in READERS.items():
        try:
            problems[name] = [
                warning for warning in read(text) if "no effect" in warning or "unknown" in warning
            ]
        except SettingError as error:
            problems[name] = str(error)

    assert [] in problems.values(), problems


def test_each_mark_is_above_an_example_that_would_be_checked() -> None:
    """An unneeded mark could hide an error later."""
    marked = {block.place for block in BLOCKS if block.unchecked}
    checkable = {block.place for block in BLOCKS if is_yaml(block) or is_properties(block)}

    assert set() == marked - checkable


def test_the_pages_have_examples() -> None:
    """Without any example, the other tests would pass."""
    assert len(COMMANDS) > 40
    assert sum(map(is_yaml, BLOCKS)) > 10
    assert sum(map(is_properties, BLOCKS)) > 4
    assert {"README.md", "mirrorflow-resource.md"} <= {page.name for page in PAGES if flows(page)}
