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


def test_an_unknown_setting_is_a_warning_with_the_likely_name(validate: Validate, tmp_path: Path) -> None:
    status, said, _ = validate(flow(tmp_path, config={"ofset.lag.max": "5"}))

    assert 0 == status
    assert "warning: ofset.lag.max: unknown, it has no effect; did you mean offset.lag.max?" in said


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
