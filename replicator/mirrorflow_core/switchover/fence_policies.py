"""Names the NetworkPolicies that fence the members of a pair, and says when one is in force. Pure.

The operator creates them, and the process of a switchover puts them in force.
"""

from typing import Final

NOT_FENCED_LABEL: Final = "mirrorflow.io/not-fenced"  # no pod has it
NOT_FENCED: Final = "Exists"  # the operator of a requirement on that label: no pod is selected
FENCED: Final = "DoesNotExist"  # all pods with the labels of brokers are selected


def policy_name(pair: str, flow: str) -> str:
    """Returns the name of the NetworkPolicy of the member whose flow is *flow*; each name has at most 40 characters.

    An alias may have characters that no name of an object has.
    """
    return f"{pair}-fence-{flow}"
