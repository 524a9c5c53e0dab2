"""Kafka 2.8, 3.4, 3.9 and 4.4 as source and as target keep each promise of a flow, as `make compatibility` checks it."""

from pathlib import Path

import pytest

from tests.compatibility.__main__ import EXIT_PASSED, main
from tests.compatibility.endpoints import opened
from tests.compatibility.result import CHECKS, Outcome, read_result
from tests.compatibility.trial import Trial
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import NEWEST_VERSION, OTHER_VERSIONS, VERSION

pytestmark = pytest.mark.java
PAIRS = [
    *((version, VERSION) for version in OTHER_VERSIONS),
    *((VERSION, version) for version in OTHER_VERSIONS),
    (NEWEST_VERSION, NEWEST_VERSION),
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_promise_holds_between_two_releases(source: str, target: str, tmp_path: Path) -> None:
    """The copy is exact after kill -9. Group offsets, checkpoints, settings and ACLs follow."""
    with (
        opened(source, "source", name="", client=None, folder=tmp_path) as from_,
        opened(target, "target", name="", client=None, folder=tmp_path) as to,
    ):
        result = Trial(source=from_, target=to, folder=tmp_path).run()

    assert dict.fromkeys(CHECKS, Outcome.PASSED) == {
        name: verdict.outcome for name, verdict in result.verdicts.items()
    }, result
    assert result.guarantee == "exactly-once"


def test_the_command_accepts_addresses_and_a_login(tmp_path: Path) -> None:
    """The command needs the properties of a Java client.

    It writes a file that contains neither a host nor a password.
    """
    client, out = tmp_path / "client.properties", tmp_path / "result.json"
    users = {"super.users": "User:ANONYMOUS;User:mirror"}
    with KafkaCluster(name="service", listeners=("SASL_SSL",), authorizer=True, config=users) as service:
        properties = service.java_client("SASL_SSL")
        addresses = properties.pop("bootstrap.servers")
        client.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        status = main(
            [
                *("--source", VERSION, "--target", addresses, "--target-name", "Some service 1.0"),
                *("--target-client", str(client), "--out", str(out)),
            ]
        )

    result = read_result(out)
    assert status == EXIT_PASSED, result
    assert (result.source, result.target) == (f"Apache Kafka {VERSION}", "Some service 1.0")
    assert {Outcome.PASSED} == {verdict.outcome for verdict in result.verdicts.values()}
    for secret in (*addresses.split(":"), users["super.users"], "mirror-secret"):
        assert secret not in out.read_text()
