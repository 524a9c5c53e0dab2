"""The objects of Spark jobs: a golden file for each valid example, and invariants.

Goldens are `golden/everything.jobs.yaml`, and the difference of the other example from it (`tests.harness.goldens`).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import (
    Runs,
    SparkDefaults,
    job_objects,
    without_blocked_jobs,
    without_source_pods,
)
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan
from mirrorflow_seed.settings import FlowFiles, load_job
from tests.harness.goldens import check_golden, text_difference
from tests.unit.operator.plan.test_connector_objects import EXAMPLES, GOLDENS, _Dumper

DEFAULTS = SparkDefaults(image="registry.example/mirrorflow-seed:1.0.0")
WANTED = Runs(seed=True, verify=True)
NAMES = ("everything", "seeded-and-verified")
FILES = ("worker.properties", "source.properties", "job.properties")


def _example(name: str, **changes: Any) -> MirrorFlow:
    if not changes:
        return load_flow((EXAMPLES / f"{name}.yaml").read_text())
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["spec"] |= changes
    return parse_flow(document)


def _jobs(name: str, runs: Runs = WANTED, **changes: Any) -> list[Object]:
    return job_objects(_example(name, **changes), runs, defaults=DEFAULTS)


def _of_kind(found: list[Object], kind: str) -> list[Object]:
    return [one for one in found if one["kind"] == kind]


def _job(name: str = "everything", **changes: Any) -> Object:
    return _of_kind(_jobs(name, Runs(seed=True), **changes), "Job")[0]


def _templates(found: list[Object]) -> list[tuple[Object, Object]]:
    """Of each Job and CronJob: the driver's pod, and the executors'."""
    data = {one["metadata"]["name"]: one["data"] for one in _of_kind(found, "ConfigMap")}
    drivers = [one["spec"]["template"] for one in _of_kind(found, "Job")]
    drivers += [one["spec"]["jobTemplate"]["spec"]["template"] for one in _of_kind(found, "CronJob")]
    config = [
        next(volume["configMap"]["name"] for volume in one["spec"]["volumes"] if volume["name"] == "config")
        for one in drivers
    ]
    return [(one, json.loads(data[name]["executor.yaml"])) for one, name in zip(drivers, config, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_the_golden(name: str) -> None:
    """Same flow, same bytes; a change is seen in review."""
    dumper = _Dumper
    dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
    full, text = (
        yaml.dump_all(_jobs(one), Dumper=dumper, sort_keys=False, width=10_000) for one in (NAMES[0], name)
    )
    if name == NAMES[0]:
        check_golden(GOLDENS / f"{name}.jobs.yaml", text)
    else:
        check_golden(GOLDENS / f"{name}.jobs.diff", text_difference(full, text))


@pytest.mark.parametrize("name", NAMES)
def test_pods_pass_the_restricted_standard_and_only_the_driver_has_a_token(name: str) -> None:
    """Pod Security Standards, restricted; executors have no business with the API server."""
    pairs = _templates(_jobs(name))

    assert pairs
    for driver, executor in pairs:
        assert driver["spec"]["automountServiceAccountToken"] is True
        assert driver["spec"]["serviceAccountName"] == "mirrorflow-seed"
        assert executor["spec"]["automountServiceAccountToken"] is False
        assert executor["spec"]["serviceAccountName"] == "east-to-west"
        for pod in (driver, executor):
            security = {
                key: value for key, value in pod["spec"]["securityContext"].items() if key != "fsGroup"
            }
            assert {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} == security
            for container in pod["spec"]["containers"]:
                assert {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                } == container["securityContext"]


@pytest.mark.parametrize("name", NAMES)
def test_driver_and_executors_mount_the_connectors_files(name: str) -> None:
    """The same Secrets at the same places, and nothing of them in a variable, an argument or a file."""
    flow = _example(name)
    connector = objects(flow, plan(flow, POD_LAYOUT), image="x:1")
    source = next(
        one["spec"]["template"]["spec"]
        for one in _of_kind(connector, "Deployment")
        if one["metadata"]["name"] == "east-to-west-source"
    )
    mounted = [one for one in source["containers"][0]["volumeMounts"] if one["mountPath"].startswith("/mnt/")]
    volumes = [one for one in source["volumes"] if "secret" in one]

    for pod in [one for pair in _templates(_jobs(name)) for one in pair]:
        spec = pod["spec"]
        assert mounted == [
            one
            for one in spec["containers"][0]["volumeMounts"]
            if one["mountPath"].startswith("/mnt/") and one["name"] != "output"
        ]
        assert volumes == [one for one in spec["volumes"] if "secret" in one]
        assert not any("secretKeyRef" in str(one) for one in spec["containers"][0]["env"])


@pytest.mark.parametrize("name", NAMES)
def test_the_job_reads_the_files_that_were_written(name: str, tmp_path: Path) -> None:
    """Each key is one that the job knows, and means what the spec says."""
    flow = _example(name)
    for config in _of_kind(_jobs(name), "ConfigMap"):
        folder = tmp_path / config["metadata"]["name"]
        folder.mkdir()
        worker, source, job = (folder / one for one in FILES)
        for path in (worker, source, job):
            path.write_text(config["data"][path.name])

        settings = FlowFiles(worker=str(worker), source=str(source)).load()
        read = load_job(str(job), {})

        assert flow.spec.source.alias == settings.source_alias
        assert read.master.startswith("k8s://")
        assert read.extra["spark.kubernetes.container.image"].startswith(
            ("registry.example/mirrorflow-seed:", "mirrorflow/seed:")
        )
    verified = load_job(str(job), {})
    assert flow.spec.verify is not None
    assert (verified.run_id, verified.sample) == ("scheduled", float(flow.spec.verify.sample))


def test_only_the_driver_mounts_the_claim_for_results() -> None:
    """In a folder of the flow, by the group that may write there; each time of a schedule is a run of its own."""
    found = _jobs("seeded-and-verified", Runs(verify=True))
    config = next(one for one in _of_kind(found, "ConfigMap") if one["metadata"]["name"].endswith("-verify"))
    [(driver, executor)] = _templates(found)
    container = driver["spec"]["containers"][0]

    assert "output=/mnt/mirrorflow/output/east-to-west" in config["data"]["job.properties"].splitlines()
    assert {"name": "output", "mountPath": "/mnt/mirrorflow/output"} in container["volumeMounts"]
    assert {"name": "output", "persistentVolumeClaim": {"claimName": "verifications"}} in driver["spec"][
        "volumes"
    ]
    assert driver["spec"]["securityContext"]["fsGroup"] == 65532
    assert "RUN_ID" in {one["name"] for one in container["env"]}
    assert "persistentVolumeClaim" not in json.dumps(executor)
    assert "fsGroup" not in json.dumps(executor)
    assert "persistentVolumeClaim" not in json.dumps(_jobs("everything"))


def test_the_spec_sets_the_size_of_a_seed() -> None:
    """Executors, their cores and memory, the rate of the whole job, and whether foreign records are borne."""
    config = next(
        one
        for one in _jobs("seeded-and-verified")
        if one["metadata"]["name"].startswith("east-to-west-seed-")
    )
    lines = dict(line.split("=", 1) for line in config["data"]["job.properties"].splitlines())

    assert {
        "run.id": "2026-11-22",
        "executors.max": "8",
        "bytes.per.second": str(400 * 1024 * 1024),
        "foreign.records": "accept",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1536m",
        "spark.kubernetes.executor.request.cores": "2",
    }.items() <= lines.items()


def test_a_new_run_or_spec_is_a_new_job_and_a_pause_is_not() -> None:
    """Kubernetes changes nothing in a Job's pods, but suspends them."""
    job = _job()
    other_run = _job(seed={"runId": "2"})
    other_size = _job(seed={"runId": "1", "executors": {"max": 9}})
    other_topics = _job(topics={"include": ["payments"]})
    paused = _job(state="Paused")

    names = {one["metadata"]["name"] for one in (job, other_run, other_size, other_topics)}
    assert len(names) == 4
    assert paused["metadata"] == job["metadata"]
    assert {**paused["spec"], "suspend": False} == job["spec"]
    assert paused["spec"]["suspend"] is True


def test_names_fit_for_the_longest_flow_name() -> None:
    """63 letters for a Job and the pods it makes, 52 for a CronJob."""
    document = yaml.safe_load((EXAMPLES / "everything.yaml").read_text())
    document["metadata"]["name"] = "f" * 40
    found = job_objects(parse_flow(document), WANTED, defaults=DEFAULTS)

    assert max(len(one["metadata"]["name"]) for one in _of_kind(found, "Job")) <= 57
    assert max(len(one["metadata"]["name"]) for one in _of_kind(found, "CronJob")) <= 52


def test_a_verification_continues_while_the_flow_is_paused_and_waits_for_a_seed() -> None:
    """Before a cut-over a flow is paused and compared; a target that is being filled differs."""
    runs = Runs(verify=True)
    paused, stopped = (_jobs("everything", runs, state=state) for state in ("Paused", "Stopped"))
    seeding = _jobs("everything", Runs(seed=True))

    assert [False, True] == [_of_kind(one, "Job")[0]["spec"]["suspend"] for one in (paused, stopped)]
    by_schedule = [_jobs("everything", Runs(), state=state) for state in ("Paused", "Stopped")]
    assert [False, True] == [_of_kind(one, "CronJob")[0]["spec"]["suspend"] for one in by_schedule]
    assert _of_kind(seeding, "CronJob")[0]["spec"]["suspend"] is True
    assert _of_kind(seeding, "CronJob")[0]["spec"]["concurrencyPolicy"] == "Forbid"


def test_a_verification_with_differences_is_not_retried() -> None:
    """A driver that is terminated by a drained node or a pause does not count as failed."""
    seed = _job()
    verify = _of_kind(_jobs("everything", Runs(verify=True)), "Job")[0]

    def rules(job: Object, action: str) -> list[list[int]]:
        found = job["spec"]["podFailurePolicy"]["rules"]
        return [
            one["onExitCodes"]["values"] for one in found if one["action"] == action and "onExitCodes" in one
        ]

    assert ([[2]], [[3]]) == (rules(seed, "FailJob"), rules(seed, "Ignore"))
    assert ([[1, 2]], [[3]]) == (rules(verify, "FailJob"), rules(verify, "Ignore"))
    assert seed["spec"]["podReplacementPolicy"] == "Failed"
    assert seed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60
    assert "ttlSecondsAfterFinished" not in seed["spec"]


def test_only_pods_of_the_job_may_reach_sparks_ports() -> None:
    """Driver and executors of one kind of job of one flow; its progress is for who reads a connector's."""
    policies = _of_kind(_jobs("everything"), "NetworkPolicy")
    selector = {"matchLabels": {"mirrorflow.io/run-of": "east-to-west", "mirrorflow.io/run": "seed"}}

    seed = next(one["spec"] for one in policies if one["metadata"]["name"] == "east-to-west-seed")
    assert selector == seed["podSelector"]
    assert [{"podSelector": selector}] == seed["ingress"][0]["from"]
    for driver, executor in _templates(_jobs("everything", Runs(seed=True)))[:1]:
        for pod in (driver, executor):
            assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_held_connector_has_no_pods_and_keeps_its_other_objects() -> None:
    """So its pods are the same when it is resumed."""
    flow = _example("everything")
    planned = objects(flow, plan(flow, POD_LAYOUT), image="x:1")
    held = without_source_pods(planned, flow)

    differing = [(one, other) for one, other in zip(planned, held, strict=True) if one != other]
    assert ["east-to-west-source"] == [one["metadata"]["name"] for one, _ in differing]
    assert [0] == [other["spec"]["replicas"] for _, other in differing]
    assert differing[0][0]["spec"]["template"] == differing[0][1]["spec"]["template"]


def test_a_new_job_waits_until_other_drivers_have_ended() -> None:
    """Two seeds at once would refuse each other's records; an existing Job is still applied."""
    planned = _jobs("everything", Runs(seed=True))
    rest, name = [one for one in planned if one["kind"] != "Job"], _job()["metadata"]["name"]
    before = frozenset({"east-to-west-seed-before"})

    assert rest == without_blocked_jobs(planned, existing=frozenset(), alive=before)
    assert planned == without_blocked_jobs(planned, existing=frozenset({name}), alive=before | {name})
    assert planned == without_blocked_jobs(planned, existing=frozenset(), alive=frozenset({name}))
    assert planned == without_blocked_jobs(planned, existing=before, alive=frozenset())
    assert planned == without_blocked_jobs(
        planned, existing=frozenset(), alive=frozenset({"east-to-west-verify-29387460"})
    )


@pytest.mark.parametrize("other", ["east-to-west-verify-29387460", "by-hand", "east-to-west-seed-1"])
def test_requested_and_scheduled_verifications_exclude_each_other(other: str) -> None:
    """Never two at once; a seed that has not quite ended makes the target differ."""
    planned = _jobs("everything", Runs(verify=True))

    assert [one for one in planned if one["kind"] != "Job"] == without_blocked_jobs(
        planned, existing=frozenset(), alive=frozenset({other})
    )
    assert planned == without_blocked_jobs(planned, existing=frozenset(), alive=frozenset())
    assert _of_kind(planned, "CronJob")[0]["spec"]["suspend"] is True
    assert _of_kind(_jobs("everything", Runs()), "CronJob")[0]["spec"]["suspend"] is False


def test_a_flow_without_runs_has_no_jobs() -> None:
    """No Job, no policy, no ConfigMap."""
    assert _jobs("smallest", Runs(seed=True, verify=True)) == []
    assert [] == [one for one in _jobs("everything", Runs()) if "seed" in one["metadata"]["name"]]
