"""docs/which-kafkas.md lists each capability that `mirrorflow check` looks for, and each simulated service."""

import re

from mirrorflow_cli.check_capabilities import CAPABILITIES, NEEDED
from tests.compatibility.__main__ import PAGE
from tests.compatibility.services import SERVICES

ROWS = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]


def test_the_page_names_every_capability_and_its_requests():
    documented = {
        (frozenset(re.findall(r"`(\w+)`", row[0])), row[2]) for row in ROWS if row[-1] in {"note", "problem"}
    }

    assert documented == {
        (
            frozenset(capability.requests.values()),
            "problem" if capability.name in NEEDED else "note",
        )
        for capability in CAPABILITIES
    }


def test_the_page_names_every_simulated_service():
    assert SERVICES.keys() <= {row[0] for row in ROWS}
