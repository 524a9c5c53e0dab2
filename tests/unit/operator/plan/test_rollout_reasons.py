"""The reasons for replacing a connector's pods contain names of settings, but never values."""

import copy
from typing import Any

from mirrorflow_operator.plan.rollouts import HASH_ANNOTATION, NAMED_MAX, RESTART_ANNOTATION, reasons_to_roll

DEPLOYMENT: dict[str, Any] = {
    "spec": {
        "template": {
            "metadata": {"annotations": {HASH_ANNOTATION: "1"}},
            "spec": {
                "serviceAccountName": "one",
                "containers": [{"name": "replicator", "image": "one:1"}],
            },
        }
    }
}
FILES = {"connector.properties": "tasks.max=1\ntopics=a\n", "worker.properties": "password=${dir:/x:y}\n"}


def _changed(**changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(DEPLOYMENT)
    template = changed["spec"]["template"]
    template["metadata"]["annotations"].update(changes.pop("annotations", {}))
    template["spec"]["containers"][0].update(changes.pop("container", {}))
    template["spec"].update(changes)
    return changed


def test_an_unchanged_deployment_has_no_rollout_reason():
    assert reasons_to_roll(DEPLOYMENT, DEPLOYMENT, FILES, FILES) == ()


def test_scaling_does_not_roll_pods():
    scaled = copy.deepcopy(DEPLOYMENT)
    scaled["spec"]["replicas"] = 5

    assert reasons_to_roll(DEPLOYMENT, scaled, FILES, FILES) == ()


def test_a_rollout_reason_names_properties_without_their_values():
    files = {**FILES, "connector.properties": "tasks.max=2\nnew=secret\n"}

    reasons = reasons_to_roll(DEPLOYMENT, _changed(annotations={HASH_ANNOTATION: "2"}), FILES, files)

    assert reasons == ("properties new, tasks.max, topics",)


def test_a_rollout_reason_names_only_the_first_of_many_properties():
    files = {"connector.properties": "".join(f"key{number}=1\n" for number in range(40))}

    (reason,) = reasons_to_roll(DEPLOYMENT, _changed(annotations={HASH_ANNOTATION: "2"}), {}, files)

    assert reason.endswith(f" and {40 - NAMED_MAX} more")


def test_a_rollout_reason_names_each_changed_part_of_a_pod():
    new = _changed(
        annotations={RESTART_ANNOTATION: "7"},
        container={
            "image": "two:2",
            "resources": {"limits": {"cpu": "1"}},
            "env": [{"name": "A", "value": "b"}],
        },
        serviceAccountName="two",
        nodeSelector={"disk": "fast"},
    )

    assert reasons_to_roll(DEPLOYMENT, new, FILES, FILES) == (
        "restart 7",
        "image one:1 -> two:2",
        "resources",
        "env",
        "ServiceAccount",
        "node selector",
    )


def test_defaults_added_by_the_api_server_do_not_roll_pods():
    old = _changed(
        container={"resources": {}, "terminationMessagePath": "/dev"}, terminationGracePeriodSeconds=30
    )
    new = _changed(terminationGracePeriodSeconds=30)

    assert reasons_to_roll(old, new, FILES, FILES) == ()
