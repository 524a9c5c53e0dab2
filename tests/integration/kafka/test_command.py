"""`mirrorflow` between two real clusters. Scripts may rely on its exit status."""

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

RUN_S = 120.0  # ten seconds on an idle machine


def run_until_caught_up(
    source: KafkaCluster, target: KafkaCluster, alias: str, topics: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    addresses = ["--from", source.bootstrap, "--to", target.bootstrap, "--from-alias", alias]
    return mirrorflow("run", *addresses, "--topics", topics, "--until-caught-up", "--log", folder / "log")


def mirrorflow(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "mirrorflow_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.mark.more
def test_run_fails_if_a_topic_cannot_be_created(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """If the name of a copy would be too long, `run` exits with 1 and a message. Without that topic it exits with 0."""
    stem, alias = unique_topic(), f"a{uuid.uuid4().hex[:8]}"
    short, long = f"{stem}-short", f"{stem}-long-".ljust(249, "x")
    for topic in (short, long):
        produce(east, east.create_topic(topic), [(0, time.time_ns() // 1_000_000, None, b"value", [])])

    without_long = run_until_caught_up(east, west, alias, short, tmp_path)
    with_long = run_until_caught_up(east, west, alias, f"{stem}-.*", tmp_path)

    assert (0, 1) == (without_long.returncode, with_long.returncode), with_long.stderr
    assert f"1 topic is not copied; first: Target topic {alias}.{long} cannot be created" in with_long.stderr
    assert {0: 1} == west.end_offsets(f"{alias}.{short}")


def test_run_fails_if_a_topic_is_mistyped(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Meanwhile, `heartbeats` of the source is copied. The message suggests the existing topic."""
    topic, alias = east.create_topic(unique_topic()), f"a{uuid.uuid4().hex[:8]}"

    with heartbeats_on(east):
        result = run_until_caught_up(east, west, alias, topic[:-1], tmp_path)

    assert result.returncode == 1, result.stdout
    assert f"No topic of {alias} is selected." in result.stderr
    assert f"is {topic} meant?" in result.stderr


@pytest.mark.parametrize(
    ("command", "status", "mark"), [("check", 1, "fail  "), ("plan", 0, "# ")], ids=["check", "plan"]
)
def test_check_and_plan_report_a_mistyped_topic(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Callable[[], str],
    command: str,
    status: int,
    mark: str,
):
    """`check` fails because the flow would copy nothing. `plan` reports the topic and succeeds."""
    topic, alias = east.create_topic(unique_topic()), f"a{uuid.uuid4().hex[:8]}"
    addresses = ["--from", east.bootstrap, "--to", west.bootstrap, "--from-alias", alias]

    with heartbeats_on(east):
        result = mirrorflow(command, *addresses, "--topics", topic[:-1])

    assert (status, "") == (result.returncode, result.stderr), result.stdout
    (message,) = (line for line in result.stdout.splitlines() if "is selected" in line)
    assert message.startswith(f"{mark}No topic of {alias} is selected. Of ")
    assert message.endswith(f"`topics` has {topic[:-1]}: is {topic} meant?")


def test_a_client_file_connects_with_tls_and_a_password(west: KafkaCluster, tmp_path: Path):
    """All records are copied. Only the user's own file contains the password."""
    with KafkaCluster(name="guarded", listeners=("SASL_SSL",)) as secured:
        produce(
            secured, secured.create_topic("orders"), [(0, time.time_ns() // 1_000_000, None, b"value", [])]
        )
        file, alias = tmp_path / "client.properties", f"a{uuid.uuid4().hex[:8]}"
        file.write_text(format_properties(secured.java_client("SASL_SSL", mechanism="SCRAM-SHA-512")))
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
        run = mirrorflow("run", *arguments, "--until-caught-up", "--log", tmp_path / "log")

    assert (0, 0) == (planned.returncode, run.returncode), planned.stderr + run.stderr
    assert f"orders -> {alias}.orders  (1 partition)" in planned.stdout
    assert {0: 1} == west.end_offsets(f"{alias}.orders")
    password = User().password
    assert not any(
        password in text for text in (planned.stdout, run.stdout, run.stderr, (tmp_path / "log").read_text())
    )
