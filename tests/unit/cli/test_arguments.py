"""Commands that need no cluster, and the errors for wrong arguments and files: status 2 and one sentence."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.command_examples import EXAMPLES as EXAMPLES_OF
from mirrorflow_cli.commands import COMMANDS, command_parser
from mirrorflow_replicator.version import version

EXAMPLES = Path(__file__).parents[2] / "examples"
Result = tuple[int, str, str]


PLAIN_SECRET = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {name: a-to-b}
spec:
  source:
    alias: A
    bootstrapServers: ["a:1"]
    tls: {}
    authentication:
      type: Custom
      sasl: true
      config:
        sasl.mechanism: PLAIN
        sasl.jaas.config: >-
          org.apache.kafka.common.security.plain.PlainLoginModule required username="me"
          password="${dir:/mnt/mirrorflow/secrets/a-mirror:password}" key.password="hunter2";
  target: {alias: B, bootstrapServers: ["b:1"]}
  topics: {include: [orders]}
"""


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Calls the command; returns (exit status, stdout, stderr)."""

    def call(*arguments: str) -> Result:
        try:
            status = main(list(arguments))
        except SystemExit as error:  # argparse exits on a usage error
            status = int(error.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_validate_accepts_a_valid_file(mirrorflow: Callable[..., Result]) -> None:
    result = mirrorflow("validate", "-f", str(EXAMPLES / "valid" / "everything.yaml"))

    assert (0, "east-to-west: valid, east -> west\n", "") == result


def test_the_error_names_the_invalid_file_and_field(mirrorflow: Callable[..., Result]) -> None:
    path = str(EXAMPLES / "invalid" / "replication-factor-zero.yaml")

    status, out, err = mirrorflow("run", "-f", path)

    assert (2, "") == (status, out)
    assert (
        f"{path}: spec.topics.replicationFactor: it is 0; write -1 for the target's default, or at least 1.\n"
        == err
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), "Specify a flow: -f FILE, or --from HOST:PORT --to HOST:PORT --topics REGEX."),
        (("validate",), "Specify a flow: -f FILE."),
        (
            ("run", "-f", "x.yaml", "--from", "a:1"),
            "-f cannot be combined with --from, --to and related flags",
        ),
        (("run", "--from", "a:1", "--to", "b:1", "--naming", "same"), "invalid choice: 'same'"),
        (("validate", "-f", "/nowhere.yaml"), "/nowhere.yaml cannot be read: No such file or directory"),
        (("validate", "-f", "/"), "/ cannot be read: Is a directory"),
        (("run", "--from", "a:1", "--to", "a:1"), "--to: a:1 is also an address of the source"),
        (("run", "--from", "a:1", "--to", "b"), "--to[0]: 'b' is not an address; write host:port, such as"),
        (
            ("run", "--from", "a:1", "--to", "b:1", "--topics", "*"),
            "--topics[0]: '*' is not a Java regular expression",
        ),
        (
            ("run", "--from", "a:1", "--to", "b:1", "--secrets", "/nowhere"),
            "--secrets: /nowhere is not a directory",
        ),
        (("nothing",), "there is no command nothing; `mirrorflow --help` lists all."),
        (("statsu",), "there is no command statsu; did you mean status? `mirrorflow --help` lists all."),
        (("run", "--topcis", "x"), "unrecognized arguments: --topcis x; did you mean --topics?\n"),
        (("run", "--unheard-of"), "unrecognized arguments: --unheard-of\n"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_wrong_usage_ends_with_status_2_and_one_sentence(
    mirrorflow: Callable[..., Result], arguments: tuple[str, ...], expected: str
) -> None:
    """Errors name the flags that the user wrote, not fields of a MirrorFlow."""
    status, out, err = mirrorflow(*arguments)

    assert (2, "") == (status, out)
    assert expected in err


def test_a_file_that_is_not_utf_8_is_refused(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_bytes(b"a: \xff\xfe")

    status, _, err = mirrorflow("validate", "-f", str(path))

    assert 2 == status
    assert "byte 3 is not UTF-8" in err


def test_plan_shows_references_instead_of_secrets(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    """The reference names the file with the password."""
    (tmp_path / "east-mirror").mkdir()
    (tmp_path / "east-mirror" / "password").write_text("hunter2")

    status, out, _ = mirrorflow(
        "plan",
        "--offline",
        "--properties",
        "-f",
        str(EXAMPLES / "valid" / "everything.yaml"),
        "--secrets",
        str(tmp_path),
    )

    assert 0 == status
    assert f'password="${{dir:{tmp_path}/east-mirror:password}}"' in out
    assert "hunter2" not in out


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_plan_refuses_a_secret_beside_a_reference_and_does_not_show_it(
    mirrorflow: Callable[..., Result], tmp_path: Path, more: tuple[str, ...]
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(PLAIN_SECRET)

    status, out, error = mirrorflow("plan", "--offline", "--properties", "-f", str(file), *more)

    assert 2 == status
    assert "[sasl.jaas.config]: it contains a secret in plain text" in out + error
    assert "hunter2" not in out + error


@pytest.mark.parametrize(
    ("flags", "keeps_names"),
    [((), False), (("--naming", "Prefix"), False), (("--naming", "Identity"), True)],
)
def test_naming_flag_selects_the_replication_policy(
    mirrorflow: Callable[..., Result], flags: tuple[str, ...], *, keeps_names: bool
) -> None:
    status, out, _ = mirrorflow("plan", "--offline", "--properties", "--from", "a:1", "--to", "b:1", *flags)

    assert status == 0
    assert ("IdentityReplicationPolicy" in out) is keeps_names


def test_naming_flag_cannot_be_combined_with_a_file(mirrorflow: Callable[..., Result]) -> None:
    """The file has a field for it."""
    status, _, err = mirrorflow("plan", "-f", "x.yaml", "--naming", "Identity")

    assert status == 2
    assert "-f cannot be combined with --from, --to and related flags" in err


def test_plan_fails_if_the_source_cannot_be_reached(mirrorflow: Callable[..., Result]) -> None:
    """It first prints the connectors, which need no cluster. With --offline it connects to no cluster."""
    status, out, error = mirrorflow("plan", "--properties", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2")
    offline, *_ = mirrorflow("plan", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--offline")

    assert (1, 0) == (status, offline)
    assert "connector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector\n" in out
    assert "Topics are not listed. Cluster source cannot be reached at 127.0.0.1:1" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--time-limit", "60"), "--time-limit requires --until-caught-up"),
        (("--until-caught-up", "--time-limit", "0"), "'0' is not a number of seconds above 0"),
        (("--until-caught-up", "--time-limit", "soon"), "'soon' is not a number of seconds above 0"),
        (("--http-port", "70000"), "'70000' is not a port"),
        (("--http-port", "-1"), "'-1' is not a port"),
    ],
)
def test_run_refuses_invalid_limits_and_ports(
    mirrorflow: Callable[..., Result], flags: tuple[str, ...], message: str
) -> None:
    status, _, error = mirrorflow("run", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", *flags)

    assert 2 == status
    assert message in error


def test_plan_begins_with_the_topics_and_groups(mirrorflow: Callable[..., Result]) -> None:
    """It prints properties only with --properties."""
    flow = str(EXAMPLES / "valid" / "everything.yaml")
    _, out, _ = mirrorflow("plan", "--offline", "-f", flow)
    _, with_properties, _ = mirrorflow("plan", "--offline", "--properties", "-f", flow)

    assert [
        "east-to-west: east -> west",
        "  copies topics that match orders.*, payments",
    ] == out.splitlines()[:2]
    assert "    checkpoints of consumer groups that match " in out
    assert "connector.class" not in out
    assert with_properties.startswith(out)


@pytest.mark.parametrize("pattern", ["orders*", "order-*"])
def test_plan_warns_of_a_shell_pattern(mirrorflow: Callable[..., Result], pattern: str) -> None:
    _, out, _ = mirrorflow("plan", "--offline", "--from", "a:1", "--to", "b:1", "--topics", pattern)

    assert f"# topics: {pattern} is a regular expression" in out
    assert f"write {pattern.replace('*', '.*')} if * stands for any characters." in out


def test_check_lists_both_unreachable_clusters(mirrorflow: Callable[..., Result]) -> None:
    """It connects to the target even if the source is unreachable."""
    status, out, _ = mirrorflow("check", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2")

    assert 1 == status
    assert ["source", "target"] == [line.split()[2] for line in out.splitlines() if line.startswith("fail")]


def test_check_names_the_missing_secret(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    status, out, _ = mirrorflow(
        "check", "-f", str(EXAMPLES / "valid" / "client-certificates.yaml"), "--secrets", str(tmp_path)
    )

    assert 1 == status
    assert f"${{dir:{tmp_path}/east-ca:ca.crt}}" in out


def test_acls_follow_names_prefixes_and_regexes(mirrorflow: Callable[..., Result]) -> None:
    """A name becomes a literal grant and a prefix a prefixed grant.

    Any other pattern becomes a grant for all topics.
    """

    def topics(*include: str) -> list[str]:
        flags = [flag for pattern in include for flag in ("--topics", pattern)]
        out = mirrorflow("acls", "--from", "a:1", "--to", "b:1", *flags)[1]
        lines = out.split("# MirrorSourceConnector, target")[0].splitlines()
        return [line.split("--topic ")[1] for line in lines if "--topic " in line]

    prefixed = "--resource-pattern-type prefixed"
    assert [f"orders {prefixed}", "payments", "heartbeats"] == topics("orders.*", "payments")
    assert [f"orders. {prefixed}", "heartbeats"] == topics("orders\\..*")
    assert [f"a {prefixed}", "heartbeats"] == topics("a.b.*")
    assert ["'*'"] == topics("orders.*", "(a|b)")
    assert ["'*'"] == topics(".*")


def test_acls_name_the_topics_and_transactional_ids_of_the_flow(mirrorflow: Callable[..., Result]) -> None:
    """Copied topics and transactional ids are granted by prefix. The principals are the users in the file."""
    out = mirrorflow("acls", "-f", str(EXAMPLES / "valid" / "everything.yaml"))[1]

    target = out.split("# MirrorSourceConnector, target west")[1]
    assert "--topic east. --resource-pattern-type prefixed" in target
    assert "--topic mm2-offsets.east.internal" in target
    assert "--topic mm2-claims.east.internal" in target
    ids = "--operation Write --operation Describe --transactional-id mirrorflow:east: --resource-pattern-type prefixed"
    assert ids in target
    assert "IdempotentWrite" not in out
    assert "--allow-principal User:mirror " in out.split("target west")[0]


def test_acls_include_the_cluster_if_acls_are_synchronised(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """Listing ACLs needs Describe on both clusters.

    Changing them needs Alter on the target; a mere report needs no Alter.
    """
    example = (EXAMPLES / "valid" / "acls-and-reports.yaml").read_text()
    reporting = tmp_path / "reporting.yaml"
    reporting.write_text(example.replace("acls: {sync: Apply}", "acls: {sync: Report}"))

    def cluster_operations(file: Path) -> list[list[str]]:
        sides = mirrorflow("acls", "-f", str(file))[1].split("# MirrorSourceConnector, target")
        return [
            [line.partition("User:mirrorflow ")[2] for line in side.splitlines() if "--cluster" in line]
            for side in sides
        ]

    describe, both = "--operation Describe --cluster", "--operation Describe --operation Alter --cluster"
    assert [[describe], [both]] == cluster_operations(EXAMPLES / "valid" / "acls-and-reports.yaml")
    assert [[describe], [describe]] == cluster_operations(reporting)
    assert [[], []] == cluster_operations(EXAMPLES / "valid" / "smallest.yaml")


def nested(opening: str, closing: str) -> str:
    return "spec: " + opening * 5_000 + "1" + closing * 5_000


def alias_bomb() -> str:
    lines = ["a0: &a0 [" + ",".join("x" * 10) + "]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "metadata: {{ .Values.name }}",
            "line 1, column 12: invalid YAML: a key must be a scalar; render {{ ... }} of",
        ),
        ("metadata: {name: {{ x }}}", "a key must be a scalar"),
        ("? [a]\n: 1", "a key must be a scalar"),
        (nested("[", "]"), "it is nested deeper than 64 levels"),
        (nested("{a: ", "}"), "it is nested deeper than 64 levels"),
        ("spec:\n  " + "- " * 5_000 + "1", "it is nested deeper than 64 levels"),
        (alias_bomb(), "it has more than 200000 values"),
        ("spec: &a [*a]", "an alias refers to a node that contains it"),
    ],
    ids=[
        "template",
        "nested template",
        "list as key",
        "lists",
        "objects",
        "blocks",
        "alias bomb",
        "alias cycle",
    ],
)
def test_an_invalid_yaml_file_is_refused_with_one_sentence(
    mirrorflow: Callable[..., Result], tmp_path: Path, command: str, text: str, expected: str
) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(text)

    status, out, err = mirrorflow(command, "-f", str(path))

    assert (2, "") == (status, out)
    assert expected in err
    assert err.count("\n") == 1


def test_yaml_aliases_are_resolved(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        "apiVersion: mirrorflow.io/v1alpha1\nkind: MirrorFlow\nmetadata: {name: &name east-to-west}\n"
        "spec:\n  source: {alias: east, bootstrapServers: ['a:1']}\n"
        "  target: {alias: west, bootstrapServers: ['b:1']}\n  topics: {include: &all [orders]}\n"
        "  groups: {include: *all}\n"
    )

    assert mirrorflow("validate", "-f", str(path))[0] == 0


@pytest.mark.parametrize("command", ["seed", "archive", "restore", "verify"])
@pytest.mark.parametrize("cores", ["-1", "0", "many", "1.5", ""])
def test_cores_must_be_a_positive_whole_number(
    mirrorflow: Callable[..., Result], command: str, cores: str
) -> None:
    status, _, err = mirrorflow(command, "--cores", cores, "--from", "a:1", "--to", "b:1")

    assert status == 2
    assert f"argument --cores: {cores!r} is not a number of cores; write 1 or more" in err


@pytest.mark.parametrize("rate", ["-1", "0", "50MB/s", ""])
def test_rate_must_be_a_number_of_bytes(mirrorflow: Callable[..., Result], rate: str) -> None:
    status, _, err = mirrorflow("seed", f"--rate={rate}", "--from", "a:1", "--to", "b:1")

    assert status == 2
    assert f"argument --rate: {rate!r} is not a number of bytes; write for example 50Mi" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_two_valid_examples(mirrorflow: Callable[..., Result], command: str) -> None:
    _, out, _ = mirrorflow(command, "--help")

    *_, heading, first, second = out.splitlines()
    assert ("examples:", [first.strip(), second.strip()]) == (heading, [*EXAMPLES_OF[command]])
    for example in EXAMPLES_OF[command]:
        arguments = shlex.split(example.partition(" > ")[0].removeprefix("source <(").rstrip(")"))
        assert ("mirrorflow", command) == (arguments[0], arguments[1])
        command_parser({command}).parse_args(arguments[1:])


def test_version_flag_prints_the_version_of_the_package(mirrorflow: Callable[..., Result]) -> None:
    assert (0, f"mirrorflow {version()}\n", "") == mirrorflow("--version")


def test_the_error_names_a_missing_package(
    mirrorflow: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MirrorFlow is installed without its extra `cli`."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="yaml")

    monkeypatch.setattr("importlib.import_module", missing)

    assert (
        2,
        "",
        "The Python package yaml is not installed; in MirrorFlow's folder: pip install '.[cli]'.\n",
    ) == mirrorflow("validate", "-f", "flow.yaml")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["run"], {"event": "failed"}),
        *(
            (command, {"phase": "Failed"})
            for command in (
                ["seed"],
                ["verify"],
                ["archive", "--archive", "/x"],
                ["restore", "--archive", "/x"],
            )
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_error_at_the_start_is_a_line_of_json_where_progress_is(
    command: list[str], kind: dict[str, str], mirrorflow: Callable[..., Result]
) -> None:
    """A program reads one object a line, and nothing else."""
    status, out, err = mirrorflow(*command, "--json", "-f", "missing.yaml")

    [line] = out.splitlines()
    assert "missing.yaml cannot be read" in json.loads(line)["message"]
    assert kind.items() <= json.loads(line).items()
    assert (status, err) == (2, "")
    assert mirrorflow(*command, "-f", "missing.yaml")[1] == ""
