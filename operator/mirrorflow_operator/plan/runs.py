"""Which of a flow's Spark jobs should be there: what `assess.runs` has decided, and `jobs` makes objects of. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_operator.settings import SEED_ACCOUNT


class RunKind(Enum):
    """What a Spark job is for, as the resource, labels and the job's own command call it."""

    SEED = "seed"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What should be there now. None of these: what has ended is kept, what goes on is ended."""

    seed: bool = False  # the run of spec.seed.runId; no scheduled verification begins meanwhile
    verify: bool = False  # the run of spec.verify.runId
    holds_connector: bool = False  # the source connector has no pods, to spare its work
    # Names of Jobs that have ended and are kept, for their logs and until the status has told of them.
    kept: frozenset[str] = frozenset()


NO_RUNS: Final = Runs()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDefaults:
    """What the operator's own settings say of Spark jobs; `image` with its tag."""

    image: str
    account: str = SEED_ACCOUNT
