"""The contents of a release, and the reasons to refuse it.

The workflow uses the same command as `make release-dry-run`.
"""

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from release.contents import checksums, formula, installation, notes, obstacles, requirements, with_registry

ROOT = Path(__file__).parents[2]
CHANGELOG = (
    "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n### Copying\n\n- New.\n\n## 0.1.0 (2026-11-30)\n\n- Old.\n"
)
DOCKERFILE = f"ARG PYTHON=python:3.13-slim@sha256:{'0' * 64}\nFROM $PYTHON AS base\n"


def test_a_correct_release_has_no_obstacles() -> None:
    assert obstacles("0.2.0", changelog=CHANGELOG, dockerfile=DOCKERFILE, tag="v0.2.0") == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tag": "v0.3.0"}, "the tag v0.3.0 is not the version of pyproject.toml, 0.2.0"),
        ({"changelog": "## 0.2.0 (unreleased)\n"}, "write the version and the date"),
        ({"changelog": "## 0.1.0 (2026-11-30)\n"}, "CHANGELOG.md begins with '0.1.0 (2026-11-30)'"),
        ({"dockerfile": "ARG PYTHON=python:3.13-slim\n"}, "run `make pin`"),
    ],
)
def test_an_obstacle_to_a_release_has_a_remedy(changes: dict[str, str], sentence: str) -> None:
    arguments = {"changelog": CHANGELOG, "dockerfile": DOCKERFILE, "tag": "v0.2.0"} | changes

    [obstacle] = obstacles("0.2.0", **arguments)

    assert sentence in obstacle


def test_notes_are_the_newest_section_of_the_changelog() -> None:
    assert notes(CHANGELOG) == "### Copying\n\n- New.\n"


def test_the_formula_names_the_source_archive() -> None:
    """All placeholders of the template are replaced. The formula installs the package versions of the tests."""
    text = formula((ROOT / "release" / "mirrorflow.rb").read_text(), url="https://example.com/a", source=b"x")

    assert 'url "https://example.com/a"' in text
    assert f'sha256 "{hashlib.sha256(b"x").hexdigest()}"' in text
    assert "@" not in re.sub("python@", "", text)
    assert "constraints.txt" in text


def test_the_images_of_the_chart_get_the_registry() -> None:
    """Only the values and the annotations for Artifact Hub change."""
    chart = ROOT / "charts" / "mirrorflow"
    values = yaml.safe_load(with_registry((chart / "values.yaml").read_text(), "registry.example/x"))
    annotations = with_registry((chart / "Chart.yaml").read_text(), "registry.example/x")
    own = [values[name]["repository"] for name in ("image", "replicator", "seed")]

    assert own == [f"registry.example/x/{name}" for name in ("operator", "replicator", "seed")]
    assert annotations.count("image: registry.example/x/") == 3
    assert "https://mirrorflow.io/docs/" in annotations
    assert with_registry("mirrorflow/seed", "") == "mirrorflow/seed"


def test_install_yaml_begins_with_its_namespace() -> None:
    documents = list(yaml.safe_load_all(installation("---\nkind: Role\n", "x")))

    assert [document["kind"] for document in documents] == ["Namespace", "Role"]
    assert documents[0]["metadata"]["name"] == "x"


def test_the_bill_of_materials_has_only_what_the_wheel_installs() -> None:
    names = {line.partition("==")[0] for line in requirements("mirrorflow", ("cli", "operator"))}

    assert {"mirrorflow", "kafka-python", "kopf", "rich", "regex", "yarl"} <= names
    assert not {"pytest", "ruff", "hypothesis", "mkdocs"} & names


def test_checksums_have_the_format_of_sha256sum() -> None:
    assert checksums({"b": b"1", "a": b"2"}).splitlines()[0] == f"{hashlib.sha256(b'2').hexdigest()}  a"


def test_the_workflow_builds_each_image_and_runs_the_command_of_the_dry_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    text = (ROOT / "Dockerfile").read_text()
    images = re.findall(r"^FROM base AS (\w+)", text, re.MULTILINE)
    steps = [step.get("run", "") for step in workflow["jobs"]["packages"]["steps"]]

    assert sorted(workflow["jobs"]["images"]["strategy"]["matrix"]["image"]) == sorted(images)
    assert any("make release-dry-run" in step for step in steps)
    assert any("cosign sign-blob" in step for step in steps)
