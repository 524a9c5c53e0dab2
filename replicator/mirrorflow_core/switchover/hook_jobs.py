"""Names the Jobs of a pair's hooks, which the operator prepares and the process of a switchover starts. Pure."""

from enum import Enum


class HookJobKind(Enum):
    """What a Job does, and to which side of the switchover. A switchover never fences its target."""

    FENCE_SOURCE = "fence-source"
    LIFT_SOURCE = "lift-source"
    LIFT_TARGET = "lift-target"
    PROMOTE = "promote"


FENCE_KINDS = (HookJobKind.FENCE_SOURCE, HookJobKind.LIFT_SOURCE, HookJobKind.LIFT_TARGET)


def hook_job_name(pair: str, kind: HookJobKind) -> str:
    """Returns the name of a Job; a pair's name has at most 40 characters.

    It is the same in every switchover of the pair, so that a Role can name it.
    """
    return f"{pair}-hook-{kind.value}"
