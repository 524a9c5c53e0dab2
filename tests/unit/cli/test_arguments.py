"""What the command says to wrong input and what it prints without a cluster: exit status, one sentence, no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
Result = tuple[int, str, str]


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command: (exit status, stdout, stderr)."""

    def call(*arguments: str) -> Result:
        try:
            status = main(list(arguments))
        except SystemExit as error:  # argparse's own way out
            status = int(error.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_valid_file_is_said_to_be_valid(mirrorflow: Callable[..., Result]) -> None:
    """Status 0 and the direction."""
    found = mirrorflow("validate", "-f", str(EXAMPLES / "valid" / "everything.yaml"))

    assert (0, "east-to-west: valid, east -> west\n", "") == found


def test_invalid_file_is_named_with_its_field(mirrorflow: Callable[..., Result]) -> None:
    """Status 2; file, field, what is wrong, what to do."""
    path = str(EXAMPLES / "invalid" / "replication-factor-zero.yaml")

    status, out, err = mirrorflow("run", "-f", path)

    assert (2, "") == (status, out)
    assert (
        f"{path}: spec.topics.replicationFactor: it is 0; write -1 for the target's default, or 1 and more.\n"
        == err
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), "Say which flow: -f FILE, or --from HOST:PORT --to HOST:PORT --topics REGEX."),
        (("validate",), "Say which flow: -f FILE."),
        (("run", "-f", "x.yaml", "--from", "a:1"), "Give either -f FILE or --from"),
        (("validate", "-f", "/nowhere.yaml"), "/nowhere.yaml cannot be read: No such file or directory"),
        (("validate", "-f", "/"), "/ cannot be read: Is a directory"),
        (("run", "--from", "a:1", "--to", "a:1"), "--to: a:1 is also an address of the source"),
        (("run", "--from", "a:1", "--to", "b"), "--to[0]: it should match pattern"),
        (
            ("run", "--from", "a:1", "--to", "b:1", "--topics", "*"),
            "--topics[0]: '*' is no regular expression",
        ),
        (
            ("run", "--from", "a:1", "--to", "b:1", "--secrets", "/nowhere"),
            "--secrets: /nowhere is no directory",
        ),
        (("nothing",), "invalid choice: 'nothing'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_sentence_and_status_2(
    mirrorflow: Callable[..., Result], arguments: tuple[str, ...], expected: str
) -> None:
    """Flags are named as the user wrote them, not as fields of a file there is not."""
    status, out, err = mirrorflow(*arguments)

    assert (2, "") == (status, out)
    assert expected in err


def test_file_that_is_no_text_is_refused(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    """A picture is no flow."""
    path = tmp_path / "flow.yaml"
    path.write_bytes(b"a: \xff\xfe")

    status, _, err = mirrorflow("validate", "-f", str(path))

    assert 2 == status
    assert "byte 3 is not UTF-8" in err


def test_plan_shows_references_and_not_secrets(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    """The file with the password is named; its content is not read."""
    (tmp_path / "east-mirror").mkdir()
    (tmp_path / "east-mirror" / "password").write_text("hunter2")

    status, out, _ = mirrorflow(
        "plan", "--offline", "-f", str(EXAMPLES / "valid" / "everything.yaml"), "--secrets", str(tmp_path)
    )

    assert 0 == status
    assert f'password="${{dir:{tmp_path}/east-mirror:password}}"' in out
    assert "hunter2" not in out


def test_plan_without_a_source_to_be_reached_says_so_and_goes_on(mirrorflow: Callable[..., Result]) -> None:
    """The properties are of use without a cluster."""
    status, out, _ = mirrorflow("plan", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2")

    assert 0 == status
    assert "connector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector\n" in out
    assert "# Topics are not listed. Cluster source cannot be reached at 127.0.0.1:1" in out


def test_check_lists_both_clusters_that_cannot_be_reached(mirrorflow: Callable[..., Result]) -> None:
    """The second is asked although the first has failed."""
    status, out, _ = mirrorflow("check", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2")

    assert 1 == status
    assert ["source", "target"] == [line.split()[2] for line in out.splitlines() if line.startswith("fail")]


def test_check_names_the_secret_that_is_missing(mirrorflow: Callable[..., Result], tmp_path: Path) -> None:
    """The reference is shown, and the property that needs it."""
    status, out, _ = mirrorflow(
        "check", "-f", str(EXAMPLES / "valid" / "client-certificates.yaml"), "--secrets", str(tmp_path)
    )

    assert 1 == status
    assert f"${{dir:{tmp_path}/east-ca:ca.crt}}" in out


def test_acls_follow_names_prefixes_and_regexes(mirrorflow: Callable[..., Result]) -> None:
    """A name is a literal, a prefix is prefixed, anything else is all topics."""

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


def test_acls_name_the_identity_of_the_flow(mirrorflow: Callable[..., Result]) -> None:
    """Copies by prefix, both internal topics, and the transactional id; each user from the file."""
    out = mirrorflow("acls", "-f", str(EXAMPLES / "valid" / "everything.yaml"))[1]

    target = out.split("# MirrorSourceConnector, target west")[1]
    assert "--topic east. --resource-pattern-type prefixed" in target
    assert "--topic mm2-offsets.east.internal" in target
    assert "--topic mm2-identity.east.internal" in target
    assert "--operation Write --operation Describe --transactional-id mirrorflow.east" in target
    assert "IdempotentWrite" not in out
    assert "--allow-principal User:mirror " in out.split("target west")[0]


def test_acls_ask_for_the_cluster_where_acls_are_synchronised(
    mirrorflow: Callable[..., Result], tmp_path: Path
) -> None:
    """Describe to see them on both sides, Alter to change them on the target; a report changes nothing."""
    example = (EXAMPLES / "valid" / "acls-and-reports.yaml").read_text()
    reporting = tmp_path / "reporting.yaml"
    reporting.write_text(example.replace("acls: {sync: Apply}", "acls: {sync: Report}"))

    def asked(file: Path) -> list[list[str]]:
        sides = mirrorflow("acls", "-f", str(file))[1].split("# MirrorSourceConnector, target")
        return [
            [line.partition("User:mirrorflow ")[2] for line in side.splitlines() if "--cluster" in line]
            for side in sides
        ]

    describe, both = "--operation Describe --cluster", "--operation Describe --operation Alter --cluster"
    assert [[describe], [both]] == asked(EXAMPLES / "valid" / "acls-and-reports.yaml")
    assert [[describe], [describe]] == asked(reporting)
    assert [[], []] == asked(EXAMPLES / "valid" / "smallest.yaml")
