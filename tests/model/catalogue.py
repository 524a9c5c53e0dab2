"""All scenarios, by name."""

from tests.model import (
    scenarios_age,
    scenarios_any,
    scenarios_faults,
    scenarios_identity,
    scenarios_rights,
    scenarios_small,
    scenarios_source,
    scenarios_topics,
)
from tests.model.scenarios import SCENARIOS

__all__ = [
    "SCENARIOS",
    "scenarios_age",
    "scenarios_any",
    "scenarios_faults",
    "scenarios_identity",
    "scenarios_rights",
    "scenarios_small",
    "scenarios_source",
    "scenarios_topics",
]
