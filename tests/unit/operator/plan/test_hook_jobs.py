"""The Jobs of a pair's hooks; `MIRRORFLOW_REWRITE_GOLDENS=1` rewrites the golden files."""

import json
from pathlib import Path
from typing import Any

from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS, HookJobKind
from mirrorflow_operator.plan.hook_jobs import HOOK_JOBS_FILE, hook_jobs
from mirrorflow_operator.plan.prepared_objects import digests_in, text_digest
from mirrorflow_replicator.switchover.hook_jobs import HookJobSettings
from mirrorflow_replicator.switchover.job_settings import load_switchover_job
from tests.harness.goldens import check_golden, object_differences, yaml_text
from tests.unit.operator.pairs import mirror_pair
from tests.unit.operator.plan.test_switchover_objects import objects, pod, request

GOLDEN = Path(__file__).parent / "golden"
IMAGE = "registry.example/gateway:3"
SMALL: dict[str, Any] = {"job": {"image": IMAGE}}
WHOLE: dict[str, Any] = {
    "timeoutSeconds": 120,
    "job": {
        "image": IMAGE,
        "command": ["/bin/gateway"],
        "args": ["route"],
        "env": [
            {"name": "GATEWAY", "value": "https://gateway.example"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "gateway", "key": "token"}}},
        ],
        "secrets": ["gateway-ca"],
        "serviceAccountName": "gateway",
        "imagePullSecrets": ["registry"],
        "securityContext": {"runAsUser": 1001},
        "resources": {"limits": {"memory": "64Mi"}},
    },
}


def jobs(hook: dict[str, Any], *, to: str = "west") -> list[dict[str, Any]]:
    pair = mirror_pair(fence={"method": "Hook", "hook": hook}, endpoint={"hook": hook})
    source = "east" if to == "west" else "west"
    return hook_jobs(pair, "east-west/move", source=source, to=to)


def with_hooks() -> list[dict[str, Any]]:
    return objects(mirror_pair(fence={"method": "Hook", "hook": SMALL}))


def test_the_jobs_of_hooks_are_those_of_the_golden_file():
    check_golden(GOLDEN / "hooks.objects.yaml", yaml_text(jobs(SMALL)))


def test_a_whole_template_gives_the_differences_of_the_golden_file():
    check_golden(GOLDEN / "hooks-whole.objects.diff", object_differences(jobs(SMALL), jobs(WHOLE)))


def test_each_job_is_created_suspended_and_its_names_are_those_of_every_switchover():
    """A Role of the chart names them."""
    there, back = jobs(SMALL), jobs(SMALL, to="east")

    assert {True} == {job["spec"]["suspend"] for job in there + back}
    assert [job["metadata"]["name"] for job in there] == [job["metadata"]["name"] for job in back]


def test_a_job_has_the_environment_of_a_command():
    variables = {
        job["metadata"]["name"].removeprefix("east-west-hook-"): {
            variable["name"].removeprefix("MIRRORFLOW_"): variable["value"]
            for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        for job in jobs(SMALL, to="east")
    }

    common = {"PAIR": "east-west", "FROM": "west", "TO": "east"}
    assert {
        "fence-source": {"ACTION": "fence", "MEMBER": "west", **common},
        "lift-source": {"ACTION": "lift", "MEMBER": "west", **common},
        "lift-target": {"ACTION": "lift", "MEMBER": "east", **common},
        "promote": {"ACTION": "promote", **common},
    } == variables


def test_only_a_hook_with_an_account_has_a_token():
    assert [{False}, {True}] == [
        {job["spec"]["template"]["spec"]["automountServiceAccountToken"] for job in jobs(hook)}
        for hook in (SMALL, WHOLE)
    ]


def test_hooks_that_are_commands_have_no_jobs():
    pair = mirror_pair(fence={"method": "Hook", "hook": {"command": ["close"]}})

    assert [] == hook_jobs(pair, "east-west/move", source="east", to="west")
    assert HOOK_JOBS_FILE not in objects(pair)[0]["data"]


def test_the_process_starts_the_jobs_that_the_operator_has_planned(tmp_path: Path):
    pair = mirror_pair(fence={"method": "Hook", "hook": SMALL}, endpoint={"hook": WHOLE})
    for name, text in objects(pair)[0]["data"].items():
        (tmp_path / name).write_text(text)

    settings = load_switchover_job(tmp_path).settings

    given: dict[str, Any] = {"namespace": "kafka", "pair": "east-west", "switchover": "east-west/move"}
    assert [
        HookJobSettings(**given, kinds=FENCE_KINDS, timeout_s=60.0),
        HookJobSettings(**given, kinds=(HookJobKind.PROMOTE,), timeout_s=120.0),
    ] == [settings.fence_hook, settings.endpoint_hook]


def test_the_job_of_a_switchover_has_the_digest_of_its_hooks_and_a_token_to_start_them():
    planned = with_hooks()
    text = planned[0]["data"][HOOK_JOBS_FILE]

    assert {HOOK_JOBS_FILE: text_digest(text)} == digests_in(planned[-1]["metadata"]["annotations"])
    assert pod(planned)["automountServiceAccountToken"]
    assert {"jobsIn": "kafka", "timeoutSeconds": 60} == request(planned)["fenceHook"]
    assert {"east-west/move"} == {
        job["metadata"]["annotations"]["mirrorflow.io/switchover-id"] for job in json.loads(text)
    }
