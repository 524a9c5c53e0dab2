"""Each file of tests/examples is accepted, or refused with the error in its first line; both are also documentation."""

from pathlib import Path

import pytest

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import InvalidSpecError

EXAMPLES = Path(__file__).parents[3] / "examples"
VALID = sorted((EXAMPLES / "valid").glob("*.yaml"))
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid_example_is_accepted_and_survives_a_round_trip(path: Path) -> None:
    """What was read can be written in the resource's own names and read again."""
    flow = load_flow(path.read_text())

    assert flow == MirrorFlow.model_validate(flow.model_dump(by_alias=True, mode="json"))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_example_is_refused_with_the_expected_error(path: Path) -> None:
    """The first line of the file says which field is named, and how."""
    text = path.read_text()
    expected = text.splitlines()[0].removeprefix("# expect: ")

    with pytest.raises(InvalidSpecError) as raised:
        load_flow(text)

    assert expected in str(raised.value)


def test_a_secret_written_by_mistake_is_not_repeated() -> None:
    """Errors name the field, never its value."""
    for name in ("password-in-plain-text", "custom-with-plain-secret"):
        with pytest.raises(InvalidSpecError) as raised:
            load_flow((EXAMPLES / "invalid" / f"{name}.yaml").read_text())

        assert "hunter2" not in str(raised.value)


def test_all_errors_are_reported_at_once() -> None:
    """One run reports every error."""
    text = (EXAMPLES / "valid" / "smallest.yaml").read_text()
    text += '  topics: {include: ["*", "a,b"], replicationFactor: 0}\n'

    with pytest.raises(InvalidSpecError) as raised:
        load_flow(text)

    assert ["spec.topics.include[0]", "spec.topics.include[1]", "spec.topics.replicationFactor"] == [
        error.path for error in raised.value.errors
    ]
