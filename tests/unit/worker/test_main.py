"""A process with wrong settings ends with status 2 and one error line."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mirrorflow_replicator.__main__ import main
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.worker.main_process import Worker

SOURCE = {
    "name": "m",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
}
WORKER = {"bootstrap.servers": "127.0.0.1:1", "mirrorflow.http.listeners": "http://127.0.0.1:0"}
RunMain = Callable[..., tuple[int, str]]


def properties(path: Path, lines: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


@pytest.fixture
def run_main(capsys: pytest.CaptureFixture[str]) -> RunMain:
    """Runs `main` with the given arguments; returns its status and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        status = main([str(argument) for argument in arguments])
        return status, capsys.readouterr().err

    return run


def refused(run_main: RunMain, folder: Path, worker: Mapping[str, str], connector: Mapping[str, str]) -> str:
    """Returns the only line on stderr, apart from warnings, of a process that ends with status 2."""
    status, stderr = run_main(
        "standalone",
        properties(folder / "worker.properties", WORKER | dict(worker)),
        properties(folder / "connector.properties", SOURCE | dict(connector)),
    )
    lines = [line for line in stderr.splitlines() if " WARNING " not in line]

    assert (2, 1) == (status, len(lines)), stderr
    return lines[0]


@pytest.mark.parametrize(
    ("worker", "connector", "sentence"),
    [
        ({}, {"tasks.max": "many"}, "tasks.max: 'many' is not a whole number"),
        ({}, {"topics": "orders["}, "topics: "),
        ({}, {"connector.class": "FileStreamSource"}, "connector.class is refused"),
        ({}, {"transforms": "rename"}, "transforms.rename.type: it is missing"),
        ({}, {"source.cluster.alias": ""}, "source.cluster.alias: it is empty"),
        ({}, {"source.cluster.bootstrap.servers": ""}, "source.cluster.bootstrap.servers: it is missing"),
        ({}, {"replication.policy.class": "com.example.Policy"}, "replication.policy.class"),
        ({}, {"replication.policy.class": "python:no.such.module:Policy"}, "cannot be imported"),
        ({}, {"enabled": "false"}, "connector.class is refused: there is nothing to run"),
        ({"mirrorflow.http.listeners": "nowhere"}, {}, "listeners: 'nowhere' is not a listener address"),
        ({"mirrorflow.http.listeners": "https://127.0.0.1:0"}, {}, "ssl.keystore.location: it is missing"),
        ({"offset.storage.store": "file"}, {}, "offset.storage.file.filename: it is missing"),
        ({"config.providers": "vault"}, {}, "config.providers.vault.class: it is missing"),
    ],
)
def test_a_wrong_setting_ends_the_process_with_one_line(
    worker: Mapping[str, str], connector: Mapping[str, str], sentence: str, run_main: RunMain, tmp_path: Path
):
    assert sentence in refused(run_main, tmp_path, worker, connector)


def test_a_listener_in_use_ends_the_process_with_one_line(run_main: RunMain, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, stderr = run_main(
            "standalone",
            properties(tmp_path / "w", WORKER | {"mirrorflow.http.listeners": address}),
            properties(tmp_path / "c", SOURCE),
        )

    assert 2 == status
    assert stderr.splitlines()[-1].startswith(f"listeners: cannot bind {address}: ")
    assert "Traceback" not in stderr


@pytest.mark.parametrize("form", ["standalone", "mm2"])
def test_the_error_names_a_file_that_cannot_be_read(form: str, run_main: RunMain, tmp_path: Path):
    """The path is missing, or is a directory."""
    files = [tmp_path / "none.properties"] * (2 if form == "standalone" else 1)
    folders = [tmp_path] * len(files)

    assert (2, f"{files[0]} cannot be read: No such file or directory.\n") == run_main(form, *files)
    assert (2, f"{tmp_path} cannot be read: Is a directory.\n") == run_main(form, *folders)


def test_a_properties_file_may_be_latin_1(run_main: RunMain, tmp_path: Path):
    """A file that is not UTF-8 is read as Latin-1, as in Java."""
    file = tmp_path / "mm2.properties"
    file.write_bytes("# für alle\nclusters = A\n".encode("latin-1"))

    status, stderr = run_main("mm2", file)

    assert (2, "clusters: no replication flow is enabled; set A->B.enabled=true for one of them.\n") == (
        status,
        stderr,
    )


def test_an_mm2_file_without_flows_and_heartbeats_is_refused(run_main: RunMain, tmp_path: Path):
    """Java would start two idle herders, which appear to work."""
    file = properties(
        tmp_path / "mm2.properties",
        {
            "clusters": "A, B",
            "A.bootstrap.servers": "a:1",
            "B.bootstrap.servers": "b:1",
            "emit.heartbeats.interval.seconds": "-1",
        },
    )

    status, stderr = run_main("mm2", file)

    assert (2, 1) == (status, len(stderr.splitlines()))
    assert "there is nothing to run" in stderr


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            {"clusters": "A, B", "A->B.enabled": "true", "A->B.topics": "orders.{1,3}"},
            "one that holds a comma, as in {1,3}, is split there",
        ),
        (
            {"clusters": "us.A, us.B", "us.A->us.B.enabled": "true", "us.B->us.A.enabled": "true"},
            "clusters: the alias us.A contains the separator '.'",
        ),
    ],
    ids=["a comma in an expression", "aliases that contain the separator"],
)
def test_an_mm2_file_that_copies_nothing_or_in_a_loop_is_refused(
    lines: Mapping[str, str], sentence: str, run_main: RunMain, tmp_path: Path
):
    """MM2 accepts the second file and copies the copies back and forth."""
    aliases = lines["clusters"].split(", ")
    addresses = {f"{alias}.bootstrap.servers": "127.0.0.1:1" for alias in aliases}

    status, stderr = run_main("mm2", properties(tmp_path / "mm2.properties", {**lines, **addresses}))

    assert (2, 1) == (status, len(stderr.splitlines()))
    assert sentence in stderr


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CLIENTS_THAT_NEVER_CONNECT = [
    ({"security.protocol": "FOO"}, "security.protocol: it is unknown"),
    ({"bootstrap.servers": "::::"}, "bootstrap.servers: '::::' is not host:port"),
    ({"bootstrap.servers": "a:99999"}, "bootstrap.servers: 'a:99999' is not host:port"),
    ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is refused"),
    (
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "broken"},
        "sasl.jaas.config: the login module is not followed",
    ),
    (
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="${{file:/secret:user}}";',
        },
        "sasl.jaas.config: PLAIN needs the option password",
    ),
]


MM2 = {
    "clusters": "a, b",
    "a.bootstrap.servers": "127.0.0.1:1",
    "b.bootstrap.servers": "127.0.0.1:2",
    "a->b.enabled": "true",
}
DISTRIBUTED = {
    "bootstrap.servers": "127.0.0.1:1",
    "group.id": "connect",
    "config.storage.topic": "c",
    "status.storage.topic": "s",
    "offset.storage.topic": "o",
}


@pytest.mark.parametrize(("client", "sentence"), CLIENTS_THAT_NEVER_CONNECT)
@pytest.mark.parametrize(
    ("form", "prefix", "lines", "cluster"),
    [("mm2", "a.", MM2, "a"), ("distributed", "", DISTRIBUTED, "distributed")],
)
def test_a_process_ends_if_a_client_can_never_connect(
    run_main: RunMain,
    tmp_path: Path,
    form: str,
    prefix: str,
    lines: Mapping[str, str],
    cluster: str,
    client: Mapping[str, str],
    sentence: str,
) -> None:
    contents = {**lines, **{prefix + key: value for key, value in client.items()}}

    status, stderr = run_main(form, properties(tmp_path / "contents.properties", contents))

    assert 2 == status
    assert f"Clients of cluster {cluster}: {sentence}" in stderr


def test_standalone_ends_if_a_connector_can_never_connect(run_main: RunMain, tmp_path: Path) -> None:
    sentence = refused(run_main, tmp_path, {}, {"source.cluster.security.protocol": "FOO"})

    assert sentence.startswith("Clients of cluster east: security.protocol: it is unknown")


def test_a_process_that_cannot_be_forked_is_a_transient_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mirrorflow run` restarts the replicator, which it does not after an invalid setting."""

    def fail(_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("mirrorflow_replicator.__main__._settings", fail)

    assert 1 == main(["mm2", "mm2.properties"])
    assert "The process cannot start: Resource temporarily unavailable.\n" == capsys.readouterr().err


STARTING = """
import signal, sys
from mirrorflow_replicator import __main__
number = int(sys.argv.pop())
__main__._serve = lambda *_, **__: signal.raise_signal(number)
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_process_that_has_not_started_its_worker(number: signal.Signals, status: int) -> None:
    """Without a traceback. In a container, the kernel ignores SIGTERM for a process that does not handle it."""
    command = [sys.executable, "-c", STARTING, "mm2", "mm2.properties", str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (status, "") == (ended.returncode, ended.stderr)


SWALLOWING = """
import signal, sys
from mirrorflow_replicator import __main__

class Imported:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

__main__._serve = lambda *_, **__: Imported() and 0
sys.exit(__main__.main())
"""


def test_sigterm_ends_a_process_that_is_in_code_whose_exceptions_python_ignores() -> None:
    """As while modules are imported: a finalizer or a callback of a weak reference cannot raise anything."""
    command = [sys.executable, "-c", SWALLOWING, "mm2", "mm2.properties"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (143, "") == (ended.returncode, ended.stderr)


def test_a_worker_runs_although_the_file_of_its_address_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full when the replicator is restarted."""
    connector = "name=a\nconnector.class=MirrorHeartbeatConnector\nsource.cluster.alias=A\n"
    worker = Worker([load_standalone("bootstrap.servers=b:1\n", [connector])])
    monkeypatch.setenv("MIRRORFLOW_HTTP_FILE", "/proc/none/url")

    worker._publish_addresses(["http://127.0.0.1:8083"])

    assert "The address cannot be written to /proc/none/url: No such file or directory" in caplog.text
