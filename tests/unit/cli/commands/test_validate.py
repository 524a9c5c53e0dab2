"""`mirrorflow validate` reports what the operator and the connectors would refuse, in each file."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from mirrorflow_cli.__main__ import main

Validate = Callable[..., tuple[int, str, str]]


def flow(
    folder: Path,
    source: str = "east",
    target: str = "west",
    *,
    config: dict[str, str] | None = None,
    policy: str = "Prefix",
    include: Sequence[str] = (".*",),
) -> Path:
    """Writes a file with a flow from *source* to *target* whose source connector has *config*."""
    ports = {"east": 1, "west": 2}
    document = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": f"{source}-to-{target}"},
        "spec": {
            side: {"alias": alias, "bootstrapServers": [f"127.0.0.1:{ports[alias]}"]}
            for side, alias in (("source", source), ("target", target))
        }
        | {
            "topics": {"naming": {"policy": policy}, "include": list(include)},
            "connectors": {"source": {"config": config or {}}},
        },
    }
    path = folder / f"{source}-to-{target}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Validate:
    """Runs `mirrorflow validate` on the given files; returns exit status, stdout and stderr."""

    def run(*paths: Path) -> tuple[int, str, str]:
        files = [argument for path in paths for argument in ("-f", str(path))]
        status = main(["validate", "--secrets", str(tmp_path), *files])
        return status, *capsys.readouterr()

    return run


def test_a_valid_flow_is_accepted(validate: Validate, tmp_path: Path) -> None:
    assert (0, "east-to-west: valid, east -> west\n", "") == validate(flow(tmp_path))


def test_files_can_be_given_without_a_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there, back = flow(tmp_path), flow(tmp_path, "west", "east")

    assert main(["validate", str(there), "--secrets", str(tmp_path), str(back)]) == 0
    assert main(["validate", "-f", str(there), str(back)]) == 0
    assert main(["plan", "--offline", str(there)]) == 0
    assert capsys.readouterr().err == ""


def test_a_command_for_one_flow_refuses_two_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(flow(tmp_path))

    for arguments in (["run", path, path], ["run", "-f", path, path], ["validate", path, "--frob"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert "unrecognized arguments: " in capsys.readouterr().err


STRIMZI = "kind: KafkaMirrorMaker2\nmetadata: {name: a}\nspec: {connectCluster: west, mirrors: []}\n"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (f"apiVersion: kafka.strimzi.io/v1\n{STRIMZI}", "Strimzi's KafkaMirrorMaker2"),
        (
            '{"kind": "List", "items": [{"spec": {}, "kind": "KafkaMirrorMaker2"}]}',
            "Strimzi's KafkaMirrorMaker2",
        ),
        (f"---\n{STRIMZI}---\n{STRIMZI}", "Strimzi's KafkaMirrorMaker2"),
        ("# mine\nclusters = A, B\nA->B.enabled = true\n", "an mm2.properties"),
    ],
    ids=["v1", "list", "documents", "properties"],
)
def test_a_file_of_strimzi_or_mm2_is_refused_with_the_convert_command(
    validate: Validate, tmp_path: Path, text: str, form: str
) -> None:
    """One sentence replaces an error for each field."""
    path = tmp_path / "file"
    path.write_text(text)

    assert validate(path) == (
        2,
        "",
        f"{path}: it is {form}, not a MirrorFlow; `mirrorflow convert {path}` makes one of it.\n",
    )


def test_a_yaml_file_that_embeds_an_mm2_properties_is_not_treated_as_one(
    validate: Validate, tmp_path: Path
) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text("configs:\n  mm2:\n    content: |\n      clusters = A, B\n")

    status, _, errors = validate(path)

    assert status == 2
    assert "mirrorflow convert" not in errors


def test_all_settings_that_a_connector_refuses_are_reported(validate: Validate, tmp_path: Path) -> None:
    config = {"offset.lag.max": "many", "topic.filter.class": "com.acme.Filter"}

    status, _, errors = validate(flow(tmp_path, config=config))

    assert 2 == status
    assert "spec.connectors.source: offset.lag.max: 'many' is not a whole number" in errors
    assert "spec.connectors.source: topic.filter.class is refused" in errors


def test_an_unknown_setting_is_reported_with_the_likely_name(validate: Validate, tmp_path: Path) -> None:
    status, _, errors = validate(flow(tmp_path, config={"ofset.lag.max": "5"}))

    assert 2 == status
    assert "spec.connectors.source.config[ofset.lag.max]: neither MirrorMaker 2 nor MirrorFlow has " in errors
    assert "did you mean offset.lag.max?" in errors


def test_each_file_is_validated(validate: Validate, tmp_path: Path) -> None:
    invalid = flow(tmp_path, config={"offset.lag.max": "many"})
    valid = flow(tmp_path, "west", "east")

    for files in ((invalid, valid), (valid, invalid)):
        status, _, errors = validate(*files)
        assert 2 == status
        assert "east-to-west: spec.connectors.source: offset.lag.max" in errors


def test_flows_that_form_a_loop_are_refused(validate: Validate, tmp_path: Path) -> None:
    files = flow(tmp_path, policy="Identity"), flow(tmp_path, "west", "east", policy="Identity")

    assert [0, 0] == [validate(file)[0] for file in files]
    status, _, errors = validate(*files)
    assert 2 == status
    assert "make a loop" in errors


def test_topics_that_can_never_be_copied_cause_warnings(validate: Validate, tmp_path: Path) -> None:
    """Internal topics and copies from the target are never copied."""
    path = flow(tmp_path, include=("__schemas", "mm2-x.internal", "west.orders", "payments"))

    status, output, _ = validate(path)

    assert status == 0
    assert [line for line in output.splitlines() if "never copied" in line] == [
        "  warning: `topics` has __schemas, which is never copied: it is an internal topic.",
        "  warning: `topics` has mm2-x.internal, which is never copied: it is an internal topic.",
        "  warning: `topics` has west.orders, which is never copied: it came from the target, west.",
    ]


def test_a_quantifier_with_a_comma_is_refused(validate: Validate, tmp_path: Path) -> None:
    """MM2 splits the list at the comma."""
    status, _, errors = validate(flow(tmp_path, include=("orders[0-9]{1,3}",)))

    assert status == 2
    assert "'orders[0-9]{1,3}' contains a comma, and MM2 splits its lists at commas" in errors


@pytest.mark.parametrize("pattern", [r"\Qorders.v1\E", r"\p{Lower}+", "(?<n>x)y", "[a&&b]"])
def test_java_regular_expressions_are_accepted(validate: Validate, tmp_path: Path, pattern: str) -> None:
    """Python's `re` refuses the first three and reads the last one differently."""
    assert (0, "east-to-west: valid, east -> west\n", "") == validate(flow(tmp_path, include=(pattern,)))
