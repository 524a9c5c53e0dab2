"""Builds reason and note of the Events about objects that the operator wrote or deleted. Pure."""

from collections.abc import Mapping, Sequence

from mirrorflow_operator.cluster.kinds import CONFIG_MAP, DEPLOYMENT, JOB
from mirrorflow_operator.cluster.observed import ChildSeen
from mirrorflow_operator.cluster.view import Id
from mirrorflow_operator.plan.names import CONNECTOR_LABEL
from mirrorflow_operator.plan.objects import Object
from mirrorflow_operator.plan.rollout_reasons import reasons_to_roll


def id_of(planned: Object) -> Id:
    """Returns kind, namespace and name."""
    return planned["kind"], planned["metadata"]["namespace"], planned["metadata"]["name"]


def news_of(
    one: Object, found: ChildSeen | None, planned: Sequence[Object], before: Mapping[Id, ChildSeen]
) -> tuple[str, str] | None:
    """Returns reason and note of the Event for writing *one*, or None if it needs no Event.

    *found* is the object before the write, *before* holds all objects of the flow before the pass.
    """
    name = one["metadata"]["name"]
    if one["kind"] == JOB.name and found is None:
        return "Started", f"Job {name}."
    if one["kind"] != DEPLOYMENT.name or found is None:
        return None
    why = _why_it_rolls(one, planned, before)
    if why:
        return "Rolling", f"{name} gets new pods: {', '.join(why)}."
    count = one["spec"]["replicas"]
    if found.content()["spec"].get("replicas") != count:
        return "Scaled", f"{name} is to have {count} pods."
    return None


def _why_it_rolls(
    deployment: Object, planned: Sequence[Object], before: Mapping[Id, ChildSeen]
) -> tuple[str, ...]:
    _, namespace, name = id_of(deployment)
    files = (CONFIG_MAP.name, namespace, name)
    old, old_files = before.get((DEPLOYMENT.name, namespace, name)), before.get(files)
    if old is None:
        return ()
    new_files = next(one for one in planned if id_of(one) == files)
    return reasons_to_roll(
        old.content(),
        deployment,
        old_files.content().get("data", {}) if old_files is not None else {},
        new_files["data"],
    )


def removal_of(child: ChildSeen, homes: Mapping[str, str]) -> tuple[str, str]:
    """Returns reason and note of the Event for deleting *child*.

    *homes* maps each planned connector to the connector whose pod it runs in, both by name.
    """
    word = child.content()["metadata"]["labels"].get(CONNECTOR_LABEL, "")
    home = homes.get(word, word)
    why = "the flow needs it no more" if home == word else f"{word} runs in the pod of {home}"
    return "Removed", f"{child.kind.name} {child.name}: {why}."
