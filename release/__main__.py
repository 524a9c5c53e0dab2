"""Builds a release into a folder: packages, chart, install.yaml, Homebrew formula, bill of materials, notes, checksums.

    python -m release --out dist                                          a dry run
    python -m release --out dist --tag v0.1.0 --registry registry.example/mirrorflow    refused unless it may be released

Signing and pushing need the network: .github/workflows/release.yml does both with what is built here.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from release.contents import (
    checksums,
    formula,
    installation,
    notes,
    obstacles,
    requirements,
    version_of,
    with_registry,
)

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "mirrorflow"
FORMULA: Final = ROOT / "release" / "mirrorflow.rb"
NAMESPACE: Final = "mirrorflow-system"  # of install.yaml
KUBERNETES: Final = "1.30.0"  # the oldest that the chart supports; helm has no cluster to ask
# Where `gh release create` puts what is attached.
DOWNLOADS: Final = "https://github.com/mirrorflow/mirrorflow/releases/download"


def main() -> int:
    arguments = _parser().parse_args()
    version = version_of((ROOT / "pyproject.toml").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    reasons = obstacles(
        version, changelog=changelog, dockerfile=(ROOT / "Dockerfile").read_text(), tag=arguments.tag
    )
    for reason in reasons:
        print(f"It may not be released: {reason}")
    if reasons and arguments.tag:
        return 1
    out: Path = arguments.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    _build_chart(out, arguments.helm, arguments.registry)
    _build_bill_of_materials(out)
    source = next(out.glob("*.tar.gz"))
    url = f"{DOWNLOADS}/v{version}/{source.name}"
    (out / "mirrorflow.rb").write_text(formula(FORMULA.read_text(), url=url, source=source.read_bytes()))
    (out / "notes.md").write_text(notes(changelog))
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "notes.md"}
    (out / "SHA256SUMS").write_text(checksums(files))
    print(f"MirrorFlow {version}:", *sorted(path.name for path in out.iterdir()), sep="\n  ")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description="Build a release into a folder.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release", help="emptied first")
    parser.add_argument(
        "--tag", default="", help="fail unless this tag may be released; without it, a dry run"
    )
    parser.add_argument("--registry", default="", help="where the images are, for the chart and install.yaml")
    parser.add_argument("--helm", default="helm", help="path of helm")
    return parser


def _build_chart(out: Path, helm: str, registry: str) -> None:
    """Packages the chart, and renders it as install.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(shutil.copytree(CHART, Path(folder) / "mirrorflow"))
        for name in ("values.yaml", "Chart.yaml", "README.md"):
            file = chart / name
            file.write_text(with_registry(file.read_text(), registry))
        _run(helm, "lint", "--strict", f"--kube-version={KUBERNETES}", str(chart))
        _run(helm, "package", "--destination", str(out), str(chart))
        rendered = _run(
            helm, "template", "mirrorflow", str(chart), f"--namespace={NAMESPACE}",
            f"--kube-version={KUBERNETES}", "--include-crds", "--no-hooks",
        )  # fmt: skip
    (out / "install.yaml").write_text(installation(rendered, NAMESPACE))


def _build_bill_of_materials(out: Path) -> None:
    """Writes the packages that the wheel installs, with the versions that the tests ran with."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements("mirrorflow", ("cli", "operator", "seed"))))
        file.flush()
        target = str(out / "mirrorflow.cdx.json")
        _run(sys.executable, "-m", "cyclonedx_py", "requirements", file.name, "--output-file", target)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
