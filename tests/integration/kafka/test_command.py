"""`mirrorflow` between two real clusters: its exit status is an answer that a script may trust."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_core.java.properties import format_properties
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.integration.kafka.comparing import produce
from tests.integration.kafka.flows import heartbeats_on

RUN_S = 120.0  # ten seconds alone, of which a start takes two


def run_until_caught_up(
    source: KafkaCluster, target: KafkaCluster, alias: str, topics: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    addresses = ["--from", source.bootstrap, "--to", target.bootstrap, "--from-alias", alias]
    return mirrorflow("run", *addresses, "--topics", topics, "--until-caught-up", "--log", folder / "log")


def mirrorflow(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, ended."""
    return subprocess.run(
        [sys.executable, "-m", "mirrorflow_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def test_what_could_not_be_created_is_no_success(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Without the topic whose copy would have too long a name it ends with 0, with it with 1 and the sentence."""
    stem, alias = unique_topic(), f"a{uuid.uuid4().hex[:8]}"
    short, long = f"{stem}-short", f"{stem}-long-".ljust(249, "x")
    for topic in (short, long):
        produce(east, east.create_topic(topic), [(0, time.time_ns() // 1_000_000, None, b"value", [])])

    some = run_until_caught_up(east, west, alias, short, tmp_path)
    whole = run_until_caught_up(east, west, alias, f"{stem}-.*", tmp_path)

    assert (0, 1) == (some.returncode, whole.returncode), whole.stderr
    assert f"1 topic is not copied; first: Target topic {alias}.{long} cannot be created" in whole.stderr
    assert {0: 1} == west.end_offsets(f"{alias}.{short}")


def test_a_mistyped_topic_is_no_success(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Though `heartbeats` of the source is copied meanwhile; the sentence names the topic that is meant."""
    topic, alias = east.create_topic(unique_topic()), f"a{uuid.uuid4().hex[:8]}"

    with heartbeats_on(east):
        done = run_until_caught_up(east, west, alias, topic[:-1], tmp_path)

    assert done.returncode == 1, done.stdout
    assert f"No topic of {alias} is selected." in done.stderr
    assert f"is {topic} meant?" in done.stderr


@pytest.mark.parametrize(
    ("command", "status", "mark"), [("check", 1, "fail  "), ("plan", 0, "# ")], ids=["check", "plan"]
)
def test_a_mistyped_topic_is_named_before_it_runs(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Callable[[], str],
    command: str,
    status: int,
    mark: str,
):
    """`check` finds that the flow would copy nothing; `plan`, which only shows, says so."""
    topic, alias = east.create_topic(unique_topic()), f"a{uuid.uuid4().hex[:8]}"
    addresses = ["--from", east.bootstrap, "--to", west.bootstrap, "--from-alias", alias]

    with heartbeats_on(east):
        done = mirrorflow(command, *addresses, "--topics", topic[:-1])

    assert (status, "") == (done.returncode, done.stderr), done.stdout
    (said,) = (line for line in done.stdout.splitlines() if "is selected" in line)
    assert said.startswith(f"{mark}No topic of {alias} is selected. Of ")
    assert said.endswith(f"`topics` has {topic[:-1]}: is {topic} meant?")


def test_a_client_file_leads_through_tls_and_a_password(west: KafkaCluster, tmp_path: Path):
    """All records are copied, and the password stands in no file but the user's own."""
    with KafkaCluster(name="guarded", listeners=("SASL_SSL",)) as guarded:
        produce(
            guarded, guarded.create_topic("orders"), [(0, time.time_ns() // 1_000_000, None, b"value", [])]
        )
        file, alias = tmp_path / "client.properties", f"a{uuid.uuid4().hex[:8]}"
        file.write_text(format_properties(guarded.java_client("SASL_SSL", mechanism="SCRAM-SHA-512")))
        arguments: list[str | Path] = [
            "--from-config",
            file,
            "--from-alias",
            alias,
            "--to",
            west.bootstrap,
            "--topics",
            "orders",
        ]

        planned = mirrorflow("plan", *arguments)
        done = mirrorflow("run", *arguments, "--until-caught-up", "--log", tmp_path / "log")

    assert (0, 0) == (planned.returncode, done.returncode), planned.stderr + done.stderr
    assert f"orders -> {alias}.orders  (1 partition)" in planned.stdout
    assert {0: 1} == west.end_offsets(f"{alias}.orders")
    password = User().password
    assert not any(
        password in text
        for text in (planned.stdout, done.stdout, done.stderr, (tmp_path / "log").read_text())
    )
