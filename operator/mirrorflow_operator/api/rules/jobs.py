"""The rules of rates, and of the Spark jobs that seed and verify."""

import re
from typing import Final

from mirrorflow_operator.api.quantity import amount
from mirrorflow_operator.api.rules.rule import Rule

SAMPLE_MIN: Final = "0.000001"  # one window in a million
EXECUTOR_MEMORY_MIN: Final = "768Mi"  # Spark's Java alone takes two thirds of it
_FIVE_FIELDS: Final = "^[^ ]+( +[^ ]+){4}$"


def _is_less(minimum: str) -> str:
    """Returns the CEL condition that the quantity `self` is less than *minimum*."""
    return (
        f"type(self) == int ? self < {int(amount(minimum))}"
        f" : isQuantity(self) && quantity(self).compareTo(quantity('{minimum}')) < 0"
    )


RULES: Final = (
    Rule(
        paths=("spec.limits.bytesPerSecond", "spec.seed.bytesPerSecond", "spec.verify.bytesPerSecond"),
        wrong=_is_less("1"),
        is_wrong=lambda self: amount(self) < 1,
        problem="<<string(self)>> is not a rate",
        cure="write a number of bytes such as 50Mi, or set spec.state to Paused",
    ),
    Rule(
        paths=("spec.verify.schedule",),
        wrong=f"self != '' && !self.matches('{_FIVE_FIELDS}')",
        is_wrong=lambda self: self and not re.search(_FIVE_FIELDS, self),
        problem="'<<self>>' does not have five fields",
        cure='write minute, hour, day, month and weekday, such as "0 3 * * *"',
    ),
    # Comparing nothing would find everything equal.
    Rule(
        paths=("spec.verify.sample",),
        wrong=f"double(self) < {SAMPLE_MIN}",
        is_wrong=lambda self: float(self) < float(SAMPLE_MIN),
        problem="<<self>> compares nothing",
        cure="write a part of all windows such as 0.1, or 1.0 for all",
    ),
    Rule(
        paths=tuple(
            f"spec.{job}.executors.resources.{part}.memory"
            for job in ("seed", "verify")
            for part in ("requests", "limits")
        ),
        wrong=_is_less(EXECUTOR_MEMORY_MIN),
        is_wrong=lambda self: amount(self) < amount(EXECUTOR_MEMORY_MIN),
        problem="<<string(self)>> is too little for a Spark executor",
        cure=f"write at least {EXECUTOR_MEMORY_MIN}",
    ),
)
