"""Lines of `mirrorflow switchover` that the demo of a switchover shows."""

import pytest

from tests.harness.demo.switchover import state_in


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("14:30:01Z  Fencing       Waits until the flow is held.", "Fencing"),
        ("14:30:02Z  Done", "Done"),
        ("west is the active member of east-west.", ""),
        ("    ^^^^^^^^^^^", ""),
        ("", ""),
    ],
)
def test_only_lines_of_steps_have_a_state(line: str, state: str):
    """The output of a command that has failed is shown whole; a line of it must not end the demo first."""
    assert state == state_in(line)
