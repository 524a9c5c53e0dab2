"""Keeps the pods of an earlier release: they get `pod_defaults` only at their next rollout. Pure.

A changed pod template replaces pods, and an upgrade of the operator must replace none. So the defaults are
left out as long as nothing else in the template changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mirrorflow_operator.plan.drift import holds
from mirrorflow_operator.plan.objects import Object
from mirrorflow_operator.plan.pod_defaults import DEFAULTS_ANNOTATION
from mirrorflow_operator.plan.rollout_reasons import reasons_to_roll


def with_kept_pods(
    planned: Iterable[Object], without: Iterable[Object], running: Mapping[str, Mapping[str, Any]]
) -> list[Object]:
    """Returns *planned*, with Deployments from *without* where that avoids replacing pods.

    *planned* has the pod defaults, *without* does not; *running* are the live Deployments by name.
    """
    bare = {one["metadata"]["name"]: one for one in without if one["kind"] == "Deployment"}
    return [
        _kept(one, bare[one["metadata"]["name"]], running.get(one["metadata"]["name"]))
        if one["kind"] == "Deployment"
        else one
        for one in planned
    ]


def _kept(planned: Object, without: Object, live: Mapping[str, Any] | None) -> Object:
    if live is None:
        return planned
    now, then = live["spec"]["template"], without["spec"]["template"]
    if DEFAULTS_ANNOTATION in (now.get("metadata", {}).get("annotations") or {}):
        return planned
    is_same = holds(now, then) and not reasons_to_roll(live, without, {}, {})
    return without if is_same else planned
