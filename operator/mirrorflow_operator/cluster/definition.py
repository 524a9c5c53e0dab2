"""Keeps the CRD of MirrorFlows as new as the newest operator that has run, and never makes it older.

Helm installs the CRD from the chart's folder `crds`, and neither upgrades it nor takes it back. So after `helm upgrade`
the new operator applies its own. After `helm rollback` the older operator leaves it alone: without the fields of the newer
release, the API server would drop what flows have in them.
"""

import logging
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from mirrorflow_operator.api.crd import definition
from mirrorflow_operator.cluster.client import Client, ObjectKind
from mirrorflow_operator.errors import ForbiddenError, RejectedError
from mirrorflow_operator.plan.drift import matches

_LOG = logging.getLogger(__name__)
DEFINITION: Final = ObjectKind(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    name="CustomResourceDefinition",
)
RELEASE_ANNOTATION: Final = "mirrorflow.io/release"  # the release whose operator has applied the CRD


async def update_definition(client: Client) -> bool:
    """Applies this operator's CRD if the stored one is not newer and differs; returns whether it did.

    Without the right to do so (`crds.enabled=false`), a user applies the CRD. Raises ApiServerErrors that pass.
    """
    wanted = annotated_definition(version("mirrorflow"))
    try:
        stored = await client.get(DEFINITION.path(None, wanted["metadata"]["name"]))
        if is_due(stored, wanted):
            await client.apply(DEFINITION, wanted)
            _LOG.info("Updated the CRD of MirrorFlows.")
            return True
    except (ForbiddenError, RejectedError) as error:
        _LOG.warning("The CRD of MirrorFlows is not updated; apply crds/mirrorflows.yaml: %s", error)
    return False


def annotated_definition(release: str) -> dict[str, Any]:
    """Returns the CRD with the annotation of *release*."""
    whole = definition()
    return {**whole, "metadata": {**whole["metadata"], "annotations": {RELEASE_ANNOTATION: release}}}


def is_due(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether *wanted* is to replace the stored CRD *present*; both name the release that applied them."""
    stored, own = _release(present), _release(wanted)
    return stored < own or (stored == own and not matches(present["spec"], wanted["spec"]))


def _release(body: Mapping[str, Any]) -> tuple[int, ...]:
    text = (body["metadata"].get("annotations") or {}).get(RELEASE_ANNOTATION, "")
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
