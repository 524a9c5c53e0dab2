"""The CRD is kept as new as the newest operator that has run."""

from copy import deepcopy

import pytest

from mirrorflow_operator.cluster.definition import annotated_definition, is_due


def test_an_equal_definition_of_the_same_release_is_left_alone() -> None:
    """The API server adds fields of its own."""
    stored = deepcopy(annotated_definition("0.2.0"))
    stored["spec"]["conversion"] = {"strategy": "None"}

    assert not is_due(stored, annotated_definition("0.2.0"))


@pytest.mark.parametrize(
    ("release", "own", "due"),
    [
        ("", "0.2.0", True),  # as Helm or a user has installed it
        ("0.1.9", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.3.0", "0.2.0", False),  # an operator that was rolled back
        ("0.2.1", "0.2.0", False),
        ("0.2.0", "0.2.0", True),  # the release was built again with another definition
    ],
)
def test_a_different_definition_is_replaced_unless_it_is_newer(release: str, own: str, *, due: bool) -> None:
    stored = deepcopy(annotated_definition(release))
    del stored["spec"]["versions"][0]["additionalPrinterColumns"]

    assert is_due(stored, annotated_definition(own)) == due
