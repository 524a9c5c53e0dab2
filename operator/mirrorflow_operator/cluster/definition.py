"""Keeps our CRDs as new as the newest operator that has run, and never makes them older.

Helm installs the CRDs from the chart's folder `crds`, and neither upgrades them, nor adds new ones, nor takes them back. So after
`helm upgrade` the new operator applies its own. After `helm rollback` the older operator leaves it alone: without the fields of the newer
release, the API server would drop what flows have in them.
"""

import logging
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from mirrorflow_operator.api.crd import RESOURCE_TYPES, ResourceType, definition
from mirrorflow_operator.cluster.client import Client, ObjectKind
from mirrorflow_operator.errors import ForbiddenError, NotFoundError, RejectedError
from mirrorflow_operator.plan.drift import matches

_LOG = logging.getLogger(__name__)
DEFINITION: Final = ObjectKind(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    name="CustomResourceDefinition",
)
RELEASE_ANNOTATION: Final = "mirrorflow.io/release"  # the release whose operator has applied the CRD


async def update_definitions(client: Client) -> bool:
    """Applies each of this operator's CRDs whose stored one is missing, or not newer and different; returns whether it did.

    Without the right to do so (`crds.enabled=false`), a user applies the CRDs. Raises ApiServerErrors that pass.
    """
    return any([await _is_updated(client, resource_type) for resource_type in RESOURCE_TYPES])


async def _is_updated(client: Client, resource_type: ResourceType) -> bool:
    wanted = annotated_definition(version("mirrorflow"), resource_type)
    try:
        if is_due(await _stored(client, wanted["metadata"]["name"]), wanted):
            await client.apply(DEFINITION, wanted)
            _LOG.info("Updated the CRD of %ss.", resource_type.kind)
            return True
    except (ForbiddenError, RejectedError) as error:
        _LOG.warning(
            "The CRD of %ss is not updated; apply crds/%s.yaml: %s",
            resource_type.kind,
            resource_type.plural,
            error,
        )
    return False


async def _stored(client: Client, name: str) -> Mapping[str, Any] | None:
    try:
        return await client.get(DEFINITION.path(None, name))
    except NotFoundError:
        return None


def annotated_definition(release: str, resource_type: ResourceType) -> dict[str, Any]:
    """Returns the CRD of a kind with the annotation of *release*."""
    whole = definition(resource_type)
    return {**whole, "metadata": {**whole["metadata"], "annotations": {RELEASE_ANNOTATION: release}}}


def is_due(present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether *wanted* is to replace the stored CRD *present* (None: there is none); both name the release that applied them."""
    if present is None:
        return True
    stored, own = _release(present), _release(wanted)
    return stored < own or (stored == own and not matches(present["spec"], wanted["spec"]))


def _release(body: Mapping[str, Any]) -> tuple[int, ...]:
    text = (body["metadata"].get("annotations") or {}).get(RELEASE_ANNOTATION, "")
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
