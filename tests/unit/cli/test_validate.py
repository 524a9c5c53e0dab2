"""`mirrorflow validate` finds what the operator and what the connectors refuse, in each of its files."""

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
    """A file with a flow of *source* to *target*, whose source connector has *config*."""
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
    """Exit status, standard output and standard error of `mirrorflow validate` of the given files."""

    def run(*paths: Path) -> tuple[int, str, str]:
        files = [argument for path in paths for argument in ("-f", str(path))]
        status = main(["validate", "--secrets", str(tmp_path), *files])
        return status, *capsys.readouterr()

    return run


def test_a_flow_is_valid(validate: Validate, tmp_path: Path) -> None:
    assert (0, "east-to-west: valid, east -> west\n", "") == validate(flow(tmp_path))


def test_files_need_no_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """People type `validate flow.yaml`."""
    there, back = flow(tmp_path), flow(tmp_path, "west", "east")

    assert main(["validate", str(there), "--secrets", str(tmp_path), str(back)]) == 0
    assert main(["validate", "-f", str(there), str(back)]) == 0
    assert main(["plan", "--offline", str(there)]) == 0
    assert capsys.readouterr().err == ""


def test_two_files_are_too_many_for_a_command_with_one_flow(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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
def test_a_file_to_be_converted_is_recognized(
    validate: Validate, tmp_path: Path, text: str, form: str
) -> None:
    """One sentence with the command, instead of an error for each field."""
    path = tmp_path / "file"
    path.write_text(text)

    assert validate(path) == (
        2,
        "",
        f"{path}: it is {form}, not a MirrorFlow; `mirrorflow convert {path}` makes one of it.\n",
    )


def test_ignored_autoscale_is_a_warning(validate: Validate) -> None:
    example = Path(__file__).parents[2] / "examples" / "valid" / "ignored-autoscale.yaml"

    status, out, _ = validate(example)

    assert status == 0
    assert "  warning: spec.connectors.source.autoscale: the operator ignores this field; " in out


def test_every_setting_that_the_connector_refuses_is_named(validate: Validate, tmp_path: Path) -> None:
    config = {"offset.lag.max": "many", "topic.filter.class": "com.acme.Filter"}

    status, _, said = validate(flow(tmp_path, config=config))

    assert 2 == status
    assert "spec.connectors.source: offset.lag.max: 'many' is not a whole number" in said
    assert "spec.connectors.source: topic.filter.class is refused" in said


def test_an_unknown_setting_is_an_error_with_the_likely_name(validate: Validate, tmp_path: Path) -> None:
    status, _, said = validate(flow(tmp_path, config={"ofset.lag.max": "5"}))

    assert 2 == status
    assert "spec.connectors.source.config[ofset.lag.max]: neither MirrorMaker 2 nor MirrorFlow has " in said
    assert "did you mean offset.lag.max?" in said


def test_each_file_is_validated(validate: Validate, tmp_path: Path) -> None:
    wrong = flow(tmp_path, config={"offset.lag.max": "many"})
    right = flow(tmp_path, "west", "east")

    for files in ((wrong, right), (right, wrong)):
        status, _, said = validate(*files)
        assert 2 == status
        assert "east-to-west: spec.connectors.source: offset.lag.max" in said


def test_flows_that_make_a_loop_are_invalid_together(validate: Validate, tmp_path: Path) -> None:
    files = flow(tmp_path, policy="Identity"), flow(tmp_path, "west", "east", policy="Identity")

    assert [0, 0] == [validate(file)[0] for file in files]
    status, _, said = validate(*files)
    assert 2 == status
    assert "make a loop" in said


def test_topics_that_can_never_be_copied_are_named(validate: Validate, tmp_path: Path) -> None:
    """Internal topics, and copies from the target, beside one that can."""
    path = flow(tmp_path, include=("__schemas", "mm2-x.internal", "west.orders", "payments"))

    status, told, _ = validate(path)

    assert status == 0
    assert [line for line in told.splitlines() if "never copied" in line] == [
        "  warning: `topics` has __schemas, which is never copied: it is an internal topic.",
        "  warning: `topics` has mm2-x.internal, which is never copied: it is an internal topic.",
        "  warning: `topics` has west.orders, which is never copied: it came from the target, west.",
    ]


def test_a_quantifier_with_a_comma_is_refused(validate: Validate, tmp_path: Path) -> None:
    """MM2 would split it."""
    status, _, told = validate(flow(tmp_path, include=("orders[0-9]{1,3}",)))

    assert status == 2
    assert "'orders[0-9]{1,3}' contains a comma, and MM2 splits its lists at commas" in told


@pytest.mark.parametrize("pattern", [r"\Qorders.v1\E", r"\p{Lower}+", "(?<n>x)y", "[a&&b]"])
def test_java_s_expressions_are_valid(validate: Validate, tmp_path: Path, pattern: str) -> None:
    """Python's `re` refuses the first three, and reads the last one in another way."""
    assert (0, "east-to-west: valid, east -> west\n", "") == validate(flow(tmp_path, include=(pattern,)))
