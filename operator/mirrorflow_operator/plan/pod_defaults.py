"""Defaults of a connector's pod: resource requests, topology spread and permission to evict it. Pure.

The spec overrides them. The annotation DEFAULTS_ANNOTATION marks pods that have them (`kept_pods`).
"""

from typing import Final

from mirrorflow_operator.api.connectors import ComputeAmounts, Resources
from mirrorflow_operator.api.template import Template, TopologySpread

DEFAULTS_ANNOTATION: Final = "mirrorflow.io/pod-defaults"
DEFAULTS: Final = "1"
# One task under load uses 95 MiB (README, Speed); an idle connector uses 0.01 cores.
REQUESTS: Final = ComputeAmounts(cpu="100m", memory="96Mi")
# For the cluster autoscaler: the emptyDir holds only temporary files, and another pod continues the work.
SAFE_TO_EVICT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
# So a failed node takes as few pods as possible; a cluster with too few nodes still runs all of them.
SPREAD: Final = (TopologySpread(topology_key="kubernetes.io/hostname"),)


def with_requests(resources: Resources) -> Resources:
    """Returns *resources* with default requests for what has neither request nor limit.

    Kubernetes uses a limit without a request as the request.
    """
    given = {
        name: getattr(resources.requests, name) or (None if getattr(resources.limits, name) else default)
        for name, default in REQUESTS
    }
    return resources.model_copy(update={"requests": ComputeAmounts(**given)})


def with_defaults(template: Template, *, is_shared: bool) -> Template:
    """Returns *template* with default annotations and, if *is_shared*, the default spread; its own win."""
    return template.model_copy(
        update={
            "annotations": {**SAFE_TO_EVICT, **template.annotations},
            "topology_spread": template.topology_spread or (SPREAD if is_shared else ()),
        }
    )
