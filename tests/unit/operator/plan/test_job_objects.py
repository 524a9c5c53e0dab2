"""The Kubernetes objects of Spark jobs.

The golden file `golden/everything.seed.yaml` is complete. It contains a seed and a scheduled verification. The other
golden files contain the differences from it (`tests.harness.goldens`).
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spark_workloads import SPARK_KEYS_SET
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan import spark_run
from mirrorflow_operator.plan.connector_objects import objects
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.job_objects import job_objects, without_blocked_jobs, without_source_pods
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_run import Runs, SparkDefaults
from mirrorflow_seed import errors, kubernetes_backend
from mirrorflow_seed.settings import POD_TEMPLATE_KEY, FlowFiles, job_of, load_job
from tests.harness.goldens import check_golden, object_differences, yaml_text
from tests.unit.operator.plan.test_connector_objects import EXAMPLES, GOLDENS

DEFAULTS = SparkDefaults(image="registry.example/mirrorflow-seed:1.0.0")
ALL_RUNS = Runs(seed=True, verify=True, archive=True, restore=True)
NAMES = ("everything", "seeded-and-verified", "archived-and-restored", "archived-continuously")
FILES = ("worker.properties", "source.properties", "job.properties")


def _example(name: str, **changes: Any) -> MirrorFlow:
    if not changes:
        return load_flow((EXAMPLES / f"{name}.yaml").read_text())
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["spec"] |= changes
    return parse_flow(document)


def _jobs(name: str, runs: Runs = ALL_RUNS, **changes: Any) -> list[Object]:
    return job_objects(_example(name, **changes), runs, defaults=DEFAULTS)


def _of_kind(planned: list[Object], kind: str) -> list[Object]:
    return [item for item in planned if item["kind"] == kind]


def _job(name: str = "everything", **changes: Any) -> Object:
    return _of_kind(_jobs(name, Runs(seed=True), **changes), "Job")[0]


def _templates(planned: list[Object]) -> list[tuple[Object, Object]]:
    """Returns the pod templates of driver and executors of each Job and CronJob."""
    data = {
        config_map["metadata"]["name"]: config_map["data"] for config_map in _of_kind(planned, "ConfigMap")
    }
    drivers = [job["spec"]["template"] for job in _of_kind(planned, "Job")]
    drivers += [
        cron_job["spec"]["jobTemplate"]["spec"]["template"] for cron_job in _of_kind(planned, "CronJob")
    ]
    config = [
        next(
            volume["configMap"]["name"] for volume in driver["spec"]["volumes"] if volume["name"] == "config"
        )
        for driver in drivers
    ]
    return [
        (driver, json.loads(data[name]["executor.yaml"]))
        for driver, name in zip(drivers, config, strict=True)
    ]


def test_the_objects_of_a_seed_are_those_of_the_golden_file() -> None:
    check_golden(GOLDENS / "everything.seed.yaml", yaml_text(_jobs("everything", Runs(seed=True))))


@pytest.mark.parametrize("name", NAMES)
def test_the_objects_of_jobs_are_those_of_the_golden_file(name: str) -> None:
    full = _jobs("everything", Runs(seed=True))
    check_golden(GOLDENS / f"{name}.jobs.diff", object_differences(full, _jobs(name)))


@pytest.mark.parametrize("name", NAMES)
def test_pods_meet_the_restricted_pod_security_standard_and_only_drivers_have_a_token(name: str) -> None:
    """Executors do not call the API server."""
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
def test_driver_and_executors_mount_the_same_secrets_as_the_connector(name: str) -> None:
    """The mount paths are the same, but jobs have no Secrets of registries.

    No environment variable contains a secret.
    """
    flow = _example(name)
    flow = flow.model_copy(update={"spec": flow.spec.model_copy(update={"schemas": None})})
    connector = objects(flow, plan(flow, POD_LAYOUT), image="x:1")
    source = next(
        deployment["spec"]["template"]["spec"]
        for deployment in _of_kind(connector, "Deployment")
        if deployment["metadata"]["name"] == "east-to-west-source"
    )
    mounted = [
        mount for mount in source["containers"][0]["volumeMounts"] if mount["mountPath"].startswith("/mnt/")
    ]
    volumes = [volume for volume in source["volumes"] if "secret" in volume]

    for pod in [template for pair in _templates(_jobs(name)) for template in pair]:
        spec = pod["spec"]
        assert mounted == [
            mount
            for mount in spec["containers"][0]["volumeMounts"]
            if mount["mountPath"].startswith("/mnt/") and mount["name"] not in {"output", "event-log"}
        ]
        assert volumes == [volume for volume in spec["volumes"] if "secret" in volume]
        given = flow.spec.archive.template.env if flow.spec.archive is not None else ()
        own = [
            item for item in spec["containers"][0]["env"] if item["name"] not in {env.name for env in given}
        ]
        assert not any("secretKeyRef" in str(variable) for variable in own)


@pytest.mark.parametrize("name", NAMES)
def test_the_job_accepts_the_files_of_its_config_map(name: str, tmp_path: Path) -> None:
    """Each key is known, and the values are those of the spec."""
    flow = _example(name)
    for config in _of_kind(_jobs(name), "ConfigMap"):
        folder = tmp_path / config["metadata"]["name"]
        folder.mkdir()
        worker, source, job = (folder / file for file in FILES)
        for path in (worker, source, job):
            path.write_text(config["data"][path.name])

        settings = FlowFiles(worker=str(worker), source=str(source)).load()
        job_settings = load_job(str(job), {})

        assert flow.spec.source.alias == settings.source_alias
        assert job_settings.master is not None
        assert job_settings.master.startswith("k8s://")
        assert job_settings.extra["spark.kubernetes.container.image"].startswith(
            ("registry.example/mirrorflow-seed:", "mirrorflow/seed:")
        )
    if flow.spec.verify is not None:
        scheduled = load_job(str(job), {})
        assert (scheduled.run_id, scheduled.sample) == ("scheduled", float(flow.spec.verify.sample))


def _properties(planned: list[Object], name: str) -> dict[str, str]:
    config = next(
        item for item in _of_kind(planned, "ConfigMap") if item["metadata"]["name"].startswith(name)
    )
    return parse_properties(config["data"]["job.properties"])


def test_the_spec_of_an_archive_sets_the_settings_of_its_jobs() -> None:
    """The groups are those whose offsets the flow translates. A restore has the same pods as an archive."""
    planned = _jobs("archived-and-restored")
    export, restore = (_properties(planned, f"east-to-west-{kind}") for kind in ("archive", "restore-"))
    [cron_job], [job] = _of_kind(planned, "CronJob"), _of_kind(planned, "Job")

    assert "s3://backups/orders?endpoint_override=objects.example:9000" == export["archive"]
    assert (str(64 * 1024 * 1024), ".*") == (export["archive.file.bytes"], export["archive.groups"])
    assert export["archive.groups.exclude"].startswith("test-.*,")
    assert "archive.follow" not in export
    assert (
        "s3://backups/orders-2026?endpoint_override=objects.example:9000",
        "2026-11-22T13:00:00Z",
        "accept",
        "false",
    ) == tuple(restore[key] for key in ("archive", "archive.until", "foreign.records", "archive.compare"))
    assert ("export", "restore") == tuple(
        spec["template"]["spec"]["containers"][0]["args"][0]
        for spec in (cron_job["spec"]["jobTemplate"]["spec"], job["spec"])
    )
    assert "2" == restore["executors.max"] == export["executors.max"]
    assert ("Forbid", False, False) == (
        cron_job["spec"]["concurrencyPolicy"],
        cron_job["spec"]["suspend"],
        job["spec"][
            "suspend"
        ],  # a paused flow can be restored, and its connector does not copy later records
    )


def test_an_archive_that_follows_the_source_is_a_single_job() -> None:
    planned = _jobs("archived-continuously")
    properties = _properties(planned, "east-to-west-archive-")

    assert ("true", "300000") == (properties["archive.follow"], properties["archive.interval.ms"])
    assert [] == _of_kind(planned, "CronJob")
    assert "gs://backups/orders" == _properties(planned, "east-to-west-restore-")["archive"]
    assert [] == _of_kind(_jobs("archived-continuously", Runs()), "Job")


def test_properties_of_spark_reach_all_jobs_and_override_no_field() -> None:
    """Only the driver writes the event log, so only it mounts the claim."""
    planned = _jobs("archived-continuously")
    for kind in ("archive", "restore"):
        properties = _properties(planned, f"east-to-west-{kind}-")
        assert ("120s", "true", "file:///mnt/mirrorflow/event-log") == tuple(
            properties[f"spark.{key}"] for key in ("network.timeout", "eventLog.enabled", "eventLog.dir")
        )
    for driver, executor in _templates(planned):
        claims = [volume for volume in driver["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        assert [{"name": "event-log", "persistentVolumeClaim": {"claimName": "spark-events"}}] == claims
        assert 65532 == driver["spec"]["securityContext"]["fsGroup"]
        assert "persistentVolumeClaim" not in json.dumps(executor)
    url = _properties(_jobs("archived-and-restored"), "east-to-west-restore-")["spark.eventLog.dir"]
    assert "hdfs://namenode:8020/spark-events" == url


def test_users_cannot_set_spark_properties_that_the_operator_sets() -> None:
    """These are keys with a field, and keys by which the driver finds and protects its executors."""
    own = {key for key in _properties(_jobs("everything"), "east-to-west-seed-") if key.startswith("spark.")}
    pod = {"POD_NAME": "a", "POD_NAMESPACE": "b", "POD_IP": "10.0.0.1"}
    template = {kubernetes_backend.IMAGE_KEY: "x", POD_TEMPLATE_KEY: "y"}
    of_driver = set(kubernetes_backend.conf(job_of(template), pod)) - set(kubernetes_backend.FIXED)
    refused = {key for key in own | of_driver if re.search(SPARK_KEYS_SET, key)}

    assert {"spark.default.parallelism", "spark.driver.memory", "spark.executor.maxNumFailures"} == (
        of_driver - refused
    )
    assert own <= refused
    for key in ("spark.authenticate", "spark.network.crypto.enabled", "spark.dynamicAllocation.enabled"):
        assert re.search(SPARK_KEYS_SET, key), key
    for key in ("spark.network.timeout", "spark.executor.heartbeatInterval", "spark.hadoop.fs.s3a.endpoint"):
        assert not re.search(SPARK_KEYS_SET, key), key


def test_kueue_decides_when_a_job_in_its_queue_starts() -> None:
    """The operator then sets no suspension, because Kueue would undo it.

    A stopped flow therefore has no Job in a queue.
    """
    planned = _jobs("archived-continuously")
    queued = _of_kind(planned, "Job")

    assert [("batch", False)] * 2 == [
        (job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "suspend" in job["spec"]) for job in queued
    ]
    assert [] == _of_kind(_jobs("archived-continuously", state="Stopped"), "Job")
    [cron_job] = _of_kind(
        _jobs("archived-and-restored", spark={"queue": "batch"}, state="Stopped"), "CronJob"
    )
    of_jobs = cron_job["spec"]["jobTemplate"]["metadata"]["labels"]
    assert ("batch", True) == (of_jobs["kueue.x-k8s.io/queue-name"], cron_job["spec"]["suspend"])


def test_a_stopped_flow_neither_archives_nor_restores() -> None:
    planned = _jobs("archived-and-restored", state="Stopped")

    assert [True, True] == [
        item["spec"]["suspend"] for kind in ("CronJob", "Job") for item in _of_kind(planned, kind)
    ]


def test_two_exports_never_run_at_the_same_time() -> None:
    """Neither a new Job nor the first scheduled one starts before the driver of an earlier export has ended."""
    followed, scheduled = (
        _jobs("archived-continuously", Runs(archive=True)),
        _jobs("archived-and-restored", Runs()),
    )
    [job] = _of_kind(followed, "Job")
    earlier, at_two = "east-to-west-archive-0a1b2c3d", "east-to-west-archive-29387460"

    def remaining(planned: list[Object], kind: str, existing: set[str], alive: set[str]) -> list[Object]:
        blocked = without_blocked_jobs(planned, existing=frozenset(existing), alive=frozenset(alive))
        return _of_kind(blocked, kind)

    assert (
        [] == remaining(followed, "Job", set(), {earlier}) == remaining(followed, "Job", {at_two}, {at_two})
    )
    assert [job] == remaining(followed, "Job", set(), {job["metadata"]["name"]})
    assert [job] == remaining(followed, "Job", set(), {"east-to-west-seed-1a2b3c4d"})
    assert [] == remaining(scheduled, "CronJob", set(), {earlier})
    assert _of_kind(scheduled, "CronJob") == remaining(scheduled, "CronJob", {at_two}, {at_two})


def test_an_export_delays_no_other_job_and_a_restore_waits_for_a_seed() -> None:
    for name, runs in (("everything", Runs(verify=True)), ("archived-and-restored", Runs(restore=True))):
        planned = _jobs(name, runs)
        at_two = frozenset({"east-to-west-archive-29387460"})
        assert planned == without_blocked_jobs(planned, existing=at_two, alive=at_two)
        assert [] == _of_kind(
            without_blocked_jobs(
                planned, existing=frozenset(), alive=frozenset({"east-to-west-seed-1a2b3c4d"})
            ),
            "Job",
        )


def test_only_the_driver_mounts_the_volume_for_results() -> None:
    """Results are written to a folder of the flow that the group can write. Each scheduled time is a separate run."""
    planned = _jobs("seeded-and-verified", Runs(verify=True))
    config = next(
        item for item in _of_kind(planned, "ConfigMap") if item["metadata"]["name"].endswith("-verify")
    )
    [(driver, executor)] = _templates(planned)
    container = driver["spec"]["containers"][0]

    assert "output=/mnt/mirrorflow/output/east-to-west" in config["data"]["job.properties"].splitlines()
    assert {"name": "output", "mountPath": "/mnt/mirrorflow/output"} in container["volumeMounts"]
    assert {"name": "output", "persistentVolumeClaim": {"claimName": "verifications"}} in driver["spec"][
        "volumes"
    ]
    assert driver["spec"]["securityContext"]["fsGroup"] == 65532
    assert "RUN_ID" in {variable["name"] for variable in container["env"]}
    assert "persistentVolumeClaim" not in json.dumps(executor)
    assert "fsGroup" not in json.dumps(executor)
    assert "persistentVolumeClaim" not in json.dumps(_jobs("everything"))


@pytest.mark.parametrize("keys", [True, False])
def test_results_have_keys_of_records_only_where_the_resource_requests_them(*, keys: bool) -> None:
    verify = {"runId": "1", "output": {"claimName": "verifications", "keys": keys}}
    (config,) = _of_kind(_jobs("seeded-and-verified", Runs(verify=True), verify=verify), "ConfigMap")
    properties = parse_properties(config["data"]["job.properties"])

    assert properties.get("output.keys") == ("true" if keys else None)


def test_the_spec_of_a_seed_sets_the_settings_of_its_job() -> None:
    config = next(
        item
        for item in _jobs("seeded-and-verified")
        if item["metadata"]["name"].startswith("east-to-west-seed-")
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


def test_a_changed_run_or_spec_creates_a_new_job_and_a_pause_does_not() -> None:
    """The pod template of a Job is immutable, but a Job can be suspended."""
    job = _job()
    other_run = _job(seed={"runId": "2"})
    other_size = _job(seed={"runId": "1", "executors": {"max": 9}})
    other_topics = _job(topics={"include": ["payments"]})
    paused = _job(state="Paused")

    names = {item["metadata"]["name"] for item in (job, other_run, other_size, other_topics)}
    assert len(names) == 4
    assert paused["metadata"] == job["metadata"]
    assert {**paused["spec"], "suspend": False} == job["spec"]
    assert paused["spec"]["suspend"] is True


def test_names_of_jobs_are_short_enough_for_the_longest_flow_name() -> None:
    """Names of a Job and its pods have at most 63 characters, names of a CronJob 52."""
    document = yaml.safe_load((EXAMPLES / "everything.yaml").read_text())
    document["metadata"]["name"] = "f" * 40
    planned = job_objects(parse_flow(document), ALL_RUNS, defaults=DEFAULTS)

    assert max(len(item["metadata"]["name"]) for item in _of_kind(planned, "Job")) <= 57
    assert max(len(item["metadata"]["name"]) for item in _of_kind(planned, "CronJob")) <= 52


@pytest.mark.parametrize("runs", [Runs(seed=True), Runs(restore=True), Runs(verify=True)], ids=str)
def test_no_scheduled_verification_begins_while_the_target_is_filled_or_verified(runs: Runs) -> None:
    by_schedule = _of_kind(_jobs("everything", runs), "CronJob")

    assert [True] == [cron_job["spec"]["suspend"] for cron_job in by_schedule]


def test_a_verification_runs_while_the_flow_is_paused_but_not_during_a_seed() -> None:
    """Users pause and verify a flow before a cutover. During a seed, the target differs."""
    runs = Runs(verify=True)
    paused, stopped = (_jobs("everything", runs, state=state) for state in ("Paused", "Stopped"))
    seeding = _jobs("everything", Runs(seed=True))

    assert [False, True] == [_of_kind(planned, "Job")[0]["spec"]["suspend"] for planned in (paused, stopped)]
    by_schedule = [_jobs("everything", Runs(), state=state) for state in ("Paused", "Stopped")]
    assert [False, True] == [_of_kind(planned, "CronJob")[0]["spec"]["suspend"] for planned in by_schedule]
    assert _of_kind(seeding, "CronJob")[0]["spec"]["suspend"] is True
    assert _of_kind(seeding, "CronJob")[0]["spec"]["concurrencyPolicy"] == "Forbid"


def test_a_driver_is_not_retried_if_it_would_end_with_the_same_exit_status() -> None:
    """The end of a driver by a node drain or a pause does not count as a failure."""
    for name in ("EXIT_DIFFERENT", "EXIT_USAGE", "EXIT_STOPPED", "EXIT_FAILED", "EXIT_NOTHING_SELECTED"):
        assert getattr(spark_run, name) == getattr(errors, name)
    seed = _job()
    verify = _of_kind(_jobs("everything", Runs(verify=True)), "Job")[0]

    def rules(job: Object, action: str) -> list[list[int]]:
        policy_rules = job["spec"]["podFailurePolicy"]["rules"]
        return [
            rule["onExitCodes"]["values"]
            for rule in policy_rules
            if rule["action"] == action and "onExitCodes" in rule
        ]

    assert ([[2, 5]], [[3]]) == (rules(seed, "FailJob"), rules(seed, "Ignore"))
    assert ([[1, 2, 5]], [[3]]) == (rules(verify, "FailJob"), rules(verify, "Ignore"))
    assert seed["spec"]["podReplacementPolicy"] == "Failed"
    assert seed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60
    assert "ttlSecondsAfterFinished" not in seed["spec"]


def test_only_pods_of_a_job_may_connect_to_its_spark_ports() -> None:
    """The NetworkPolicy selects the driver and executors of one kind of job of one flow."""
    policies = _of_kind(_jobs("everything"), "NetworkPolicy")
    selector = {"matchLabels": {"mirrorflow.io/run-of": "east-to-west", "mirrorflow.io/run": "seed"}}

    seed = next(policy["spec"] for policy in policies if policy["metadata"]["name"] == "east-to-west-seed")
    assert selector == seed["podSelector"]
    assert [{"podSelector": selector}] == seed["ingress"][0]["from"]
    for driver, executor in _templates(_jobs("everything", Runs(seed=True)))[:1]:
        for pod in (driver, executor):
            assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_source_connector_replaced_by_a_seed_has_no_pods_and_keeps_its_template() -> None:
    """The template is unchanged, so that its pods are the same after the seed."""
    flow = _example("everything")
    planned = objects(flow, plan(flow, POD_LAYOUT), image="x:1")
    held = without_source_pods(planned, flow)

    differing = [(before, after) for before, after in zip(planned, held, strict=True) if before != after]
    assert ["east-to-west-source"] == [before["metadata"]["name"] for before, _ in differing]
    assert [0] == [after["spec"]["replicas"] for _, after in differing]
    assert differing[0][0]["spec"]["template"] == differing[0][1]["spec"]["template"]


def test_a_new_job_is_not_created_while_other_drivers_run() -> None:
    """Two seeds at the same time would refuse each other's records. An existing Job is still applied."""
    planned = _jobs("everything", Runs(seed=True))
    rest, name = [item for item in planned if item["kind"] != "Job"], _job()["metadata"]["name"]
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
    """They do not start during a seed either, because the target would differ."""
    planned = _jobs("everything", Runs(verify=True))

    assert [item for item in planned if item["kind"] != "Job"] == without_blocked_jobs(
        planned, existing=frozenset(), alive=frozenset({other})
    )
    assert planned == without_blocked_jobs(planned, existing=frozenset(), alive=frozenset())
    assert _of_kind(planned, "CronJob")[0]["spec"]["suspend"] is True
    assert _of_kind(_jobs("everything", Runs()), "CronJob")[0]["spec"]["suspend"] is False


def test_a_flow_without_runs_has_no_objects_of_jobs() -> None:
    assert _jobs("smallest", Runs(seed=True, verify=True)) == []
    assert [] == [item for item in _jobs("everything", Runs()) if "seed" in item["metadata"]["name"]]
