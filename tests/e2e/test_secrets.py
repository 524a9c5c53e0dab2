"""Passwords and certificates from Secrets are rotated without a restart.

A missing or wrong Secret is reported by name.
"""

from collections.abc import Callable

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.e2e.story import assert_same, pod_names, restarts, wait_for_reason, wait_for_records
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.flows import secret, secrets_of, side
from tests.harness.kubernetes.stage import WAIT_S, Stage

SECOND = User(password="another-secret")


def test_a_password_is_rotated_without_a_new_pod(stage: Stage, ready_flow: Callable[..., str]):
    """The broker restarts and accepts only the second password. The pods authenticate with it."""
    flow = ready_flow("rotate", "orders.rotate")
    load(stage.east, "orders.rotate", 500)
    wait_for_records(stage, f"{flow}.orders.rotate", 500)
    before = stage.pods(flow)
    try:
        _change_password(stage.east, SECOND)
        stage.apply(*secrets_of(stage.east, user=SECOND))
        stage.east.broker(1).stop()
        stage.east.broker(1).start()
        load(stage.east, "orders.rotate", 500)
        wait_for_records(stage, f"{flow}.orders.rotate", 1_000)
    finally:
        _change_password(stage.east, User())
        stage.apply(*secrets_of(stage.east))

    after = stage.pods(flow)
    assert_same(stage, flow, "orders.rotate")
    assert pod_names(after) == pod_names(before)
    assert restarts(after) == restarts(before)


def test_a_missing_secret_is_reported_and_the_flow_starts_once_it_exists(
    stage: Stage, make_flow: Callable[..., str]
):
    source = side(stage.east) | {"alias": "waiting"}
    source["authentication"]["password"] = {"secretName": "not-yet-there", "key": "password"}
    stage.east.create_topic("late")
    load(stage.east, "late", 100)

    name = make_flow("waiting", ["late"], source=source)
    message = wait_for_reason(stage, name, "Accepted", "SecretMissing")
    stage.apply(secret("not-yet-there", password=User().password))
    wait_for_records(stage, "waiting.late", 100)

    assert "not-yet-there" in message


def test_a_wrong_password_is_reported_for_its_side(stage: Stage, make_flow: Callable[..., str]):
    stage.apply(secret("mistyped", password="no-such-password"))
    source = side(stage.east) | {"alias": "mistaken"}
    source["authentication"]["password"] = {"secretName": "mistyped", "key": "password"}

    name = make_flow("mistaken", ["mistaken.*"], source=source)
    message = wait_for_reason(stage, name, "SourceReachable", "AuthenticationFailed")

    assert message
    assert "no-such-password" not in message


def _change_password(cluster: KafkaCluster, user: User) -> None:
    change = UserScramCredentialUpsertion(
        user.name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), user.password.encode()
    )
    cluster.admin.alter_user_scram_credentials([change])[user.name].result(WAIT_S)
    wait_until("the broker responds", lambda: bool(cluster.topics()))
