"""Types for the Spark jobs of a flow, which `assess.due_jobs` decides and `jobs` builds. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_operator.settings import SEED_ACCOUNT


class RunKind(Enum):
    """The purpose of a Spark job, by its name in the resource, in labels and in the job's command."""

    SEED = "seed"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The Spark jobs that should exist now. With none set, ended Jobs are kept and running ones deleted."""

    seed: bool = False  # the run of spec.seed.runId; no scheduled verification begins meanwhile
    verify: bool = False  # the run of spec.verify.runId
    holds_connector: bool = False  # the source connector has no pods, because the seed does its work
    # Names of ended Jobs that are kept for their logs and until the status reports them.
    kept: frozenset[str] = frozenset()


NO_RUNS: Final = Runs()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDefaults:
    """The operator's settings for Spark jobs; `image` includes the tag."""

    image: str
    account: str = SEED_ACCOUNT
