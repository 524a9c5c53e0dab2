"""The valid files of tests/examples are accepted. The invalid ones are refused with the error in their first line."""

from pathlib import Path

import pytest

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import InvalidSpecError

EXAMPLES = Path(__file__).parents[3] / "examples"
OF_USERS = Path(__file__).parents[4] / "examples"
VALID = sorted(
    (
        *(EXAMPLES / "valid").glob("*.yaml"),
        *(OF_USERS / "archive").glob("*.yaml"),
        *(OF_USERS / "spark-operator").glob("*.yaml"),
    )
)
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_valid_example_is_unchanged_by_a_round_trip(path: Path) -> None:
    flow = load_flow(path.read_text())

    assert flow == MirrorFlow.model_validate(flow.model_dump(by_alias=True, mode="json"))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_example_is_refused_with_the_expected_error(path: Path) -> None:
    text = path.read_text()
    expected = text.splitlines()[0].removeprefix("# expect: ")

    with pytest.raises(InvalidSpecError) as raised:
        load_flow(text)

    assert expected in str(raised.value)


def test_an_error_does_not_contain_the_value_of_a_secret() -> None:
    """Errors name only the field."""
    for name in ("password-in-plain-text", "custom-with-plain-secret"):
        with pytest.raises(InvalidSpecError) as raised:
            load_flow((EXAMPLES / "invalid" / f"{name}.yaml").read_text())

        assert "hunter2" not in str(raised.value)


def test_all_errors_of_a_flow_are_reported_together() -> None:
    text = (EXAMPLES / "valid" / "smallest.yaml").read_text()
    text += '  topics: {include: ["*", "a,b"], replicationFactor: 0}\n'

    with pytest.raises(InvalidSpecError) as raised:
        load_flow(text)

    assert ["spec.topics.include[0]", "spec.topics.include[1]", "spec.topics.replicationFactor"] == [
        error.path for error in raised.value.errors
    ]
