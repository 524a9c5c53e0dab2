"""The operator replaces the CRD unless a newer operator has written it."""

from copy import deepcopy

import pytest

from mirrorflow_operator.api.crd import MIRROR_FLOWS, RESOURCE_TYPES
from mirrorflow_operator.cluster.definition import annotated_definition, is_due


def test_an_equal_crd_of_the_same_release_is_not_replaced() -> None:
    """The API server adds fields to the stored CRD."""
    stored = deepcopy(annotated_definition("0.2.0", MIRROR_FLOWS))
    stored["spec"]["conversion"] = {"strategy": "None"}

    assert not is_due(stored, annotated_definition("0.2.0", MIRROR_FLOWS))


@pytest.mark.parametrize(
    ("release", "own", "expected"),
    [
        ("", "0.2.0", True),  # installed by Helm or a user
        ("0.1.9", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.3.0", "0.2.0", False),  # the operator was rolled back
        ("0.2.1", "0.2.0", False),
        ("0.2.0", "0.2.0", True),  # the release was built again with a different CRD
    ],
)
def test_a_different_crd_is_replaced_unless_it_is_newer(release: str, own: str, *, expected: bool) -> None:
    stored = deepcopy(annotated_definition(release, MIRROR_FLOWS))
    del stored["spec"]["versions"][0]["additionalPrinterColumns"]

    assert is_due(stored, annotated_definition(own, MIRROR_FLOWS)) == expected


def test_a_missing_crd_is_created() -> None:
    """Helm does not install new CRDs on an upgrade."""
    assert all(is_due(None, annotated_definition("0.2.0", known)) for known in RESOURCE_TYPES)
