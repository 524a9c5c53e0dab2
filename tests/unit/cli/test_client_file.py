"""`--from-config` and `--to-config` read a Java client's properties file; secrets stay in the file."""

import json
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_core.java.properties import format_properties
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.worker_properties import load_standalone

JAAS = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="se\\\\"cret";'
)
FILE = f"""
bootstrap.servers=east:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={JAAS}
ssl.truststore.location=/ca.pem
ssl.truststore.type=PEM
ssl.endpoint.identification.algorithm=
"""


@pytest.fixture
def client_file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def source_connector(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert 0 == main(["plan", "--offline", "--json", *arguments])
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    connector: dict[str, Any] = flow["connectors"][0]
    return connector


def test_the_connector_resolves_secrets_from_the_file(
    capsys: pytest.CaptureFixture[str], client_file: Path
) -> None:
    connector = source_connector(capsys, "--from-config", str(client_file), "--to", "west:9092")
    properties = connector["connectorProperties"]
    assert "secret" not in json.dumps(connector).replace("secrets", "")
    settings = load_standalone(
        format_properties(connector["workerProperties"]), [format_properties(properties)]
    ).connectors[0]
    assert settings.source is not None
    client = Resolver(settings.source.providers).resolve_client(settings.source.source_admin.properties)
    assert 'password="se\\"cret"' in client["sasl.jaas.config"]
    assert {
        "bootstrap.servers": "east:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
    }.items() <= client.items()


def test_from_flag_overrides_the_addresses_in_the_file(
    capsys: pytest.CaptureFixture[str], client_file: Path
) -> None:
    connector = source_connector(
        capsys, "--from", "other:1", "--from-config", str(client_file), "--to", "west:9092"
    )
    assert "other:1" == connector["connectorProperties"]["source.cluster.bootstrap.servers"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("security.protocol=SSL\n", "has no bootstrap.servers; add it, or set --to HOST:PORT"),
        ("bootstrap.servers=a:1\nsecurity.protocol=TLS\n", "security.protocol=TLS"),
        ("bootstrap.servers=nothing\n", "--to"),
        ("bootstrap.servers=a:1\nx=\\u00\n", "cannot be read"),
        ("bootstrap.servers=a:1\nsecurity.protcol=SSL\n", "did you mean security.protocol?\n"),
        ("bootstrap.servers=a:1\nsasl.mechansim=PLAIN\n", "did you mean sasl.mechanism?\n"),
        ("bootstrap.servers=a:1\nsecurity.level=high\n", "is no setting of Kafka's clients.\n"),
    ],
)
def test_an_invalid_client_file_is_refused_with_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    assert 2 == main(["run", "--from", "east:9092", "--to-config", str(path)])
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


@pytest.mark.parametrize("character", [":", "}"])
def test_a_path_with_a_character_that_references_cannot_contain_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, character: str
) -> None:
    folder = tmp_path / f"a{character}b"
    folder.mkdir()
    path = folder / "client.properties"
    path.write_text(FILE)

    assert 2 == main(["plan", "--offline", "--from-config", str(path), "--to", "west:9092"])

    assert (
        f"--from-config: {path} contains {character!r}, which references to passwords in that file cannot contain; "
        "move the file to another path.\n"
    ) == capsys.readouterr().err


def test_a_file_without_secrets_may_have_any_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a:b.properties"
    path.write_text("bootstrap.servers=east:9093\n")

    connector = source_connector(capsys, "--from-config", str(path), "--to", "west:9092")

    assert "east:9093" == connector["connectorProperties"]["source.cluster.bootstrap.servers"]


def test_an_unknown_client_setting_is_reported_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java clients ignore it. Many files have settings of a serializer or an interceptor."""
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=east:1\nschema.registry.url=http://x\nclient.rak=a\nclient.rack=a\n")

    assert 0 == main(["plan", "--offline", "--properties", "--from-config", str(path), "--to", "west:9092"])

    captured = capsys.readouterr()
    assert f"--from-config: schema.registry.url in {path} is no setting of Kafka's clients" in captured.err
    assert captured.err.endswith("it has no effect; did you mean client.rack?\n")
    assert "client.rack" in captured.out
    assert "schema.registry.url" not in captured.out
