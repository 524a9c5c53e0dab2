"""The valid files of tests/examples/pairs are accepted. The invalid ones are refused with the error in their first line."""

from pathlib import Path

import pytest

from mirrorflow_operator.api.load import read_document
from mirrorflow_operator.api.mirror_pair import PAIR_KIND, MirrorPair, load_pair, parse_pair
from mirrorflow_operator.api.switchover import Switchover, parse_switchover
from mirrorflow_operator.errors import InvalidSpecError

EXAMPLES = Path(__file__).parents[3] / "examples" / "pairs"
VALID = sorted((EXAMPLES / "valid").glob("*.yaml"))
FOLDER = Path(__file__).parents[4] / "examples" / "switchover"
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))


def load(path: Path) -> MirrorPair | Switchover:
    document = read_document(path.read_text())
    return parse_pair(document) if document["kind"] == PAIR_KIND else parse_switchover(document)


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_example_is_unchanged_by_a_round_trip(path: Path) -> None:
    loaded = load(path)

    assert loaded == type(loaded).model_validate(loaded.model_dump(by_alias=True, mode="json"))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_example_is_refused_with_the_expected_error(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# expect: ")

    with pytest.raises(InvalidSpecError) as raised:
        load(path)

    assert expected in str(raised.value)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("pair*.yaml")), ids=lambda path: path.stem)
def test_the_examples_of_pairs_are_valid(path: Path) -> None:
    """The command reads the same files."""
    assert "east-west" == load_pair(path.read_text()).pair.metadata.name


def test_the_switchovers_of_the_examples_refer_to_the_pair() -> None:
    pair = load_pair((FOLDER / "pair.yaml").read_text()).pair
    named = [
        parse_switchover(read_document(path.read_text())).spec
        for path in FOLDER.glob("*.yaml")
        if not path.stem.startswith("pair")
    ]

    assert {"Planned", "Rehearsal", "Unplanned"} == {spec.type for spec in named}
    assert all(spec.pair == pair.metadata.name and spec.to in pair.spec.members for spec in named)
