"""Builds MirrorFlow's images from the repository's Dockerfile, without a daemon or a registry.

        image = build("replicator", version="0.1.0")
        cluster.load(image.archive)

buildah follows the Dockerfile; where buildah or root is missing, Docker builds instead. buildah needs the base image in its
store under its name: either it was pulled there, or mmdebstrap makes a substitute, once and in half a minute, from Debian's
Python of the same version. All files are in images/ next to the programs that setup.sh builds.

PySpark is half a gigabyte of source, of which pip makes a wheel. The build of `seed` uses the wheel that the work tree's pip
has made or makes there, so that a machine fetches it once.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.installation import CACHE
from tests.harness.kubernetes.kind import docker_responds

ROOT = Path(__file__).parents[3]
STORE = CACHE / "images"
DOCKERFILE = ROOT / "Dockerfile"
INSTALLED = ("operator", "replicator")  # images that each release needs
TARGETS = (*INSTALLED, "console", "seed")
VERSION = "0.1.0"
REPOSITORY = "docker.io/mirrorflow"  # a container runtime resolves `mirrorflow/operator` to this name
COMMANDS = ("buildah", "mmdebstrap")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_WAIT_S = 900.0  # half a minute on an idle machine
# The Debian release whose python3 has the version in the Dockerfile.
DEBIAN = {"3.11": "bookworm", "3.13": "trixie"}
PACKAGES = "python3,python3-pip,ca-certificates"
WHEELS_MOUNT = "/mnt/wheels"  # the folder in a build
EXCLUDED_FOLDERS = ("man", "doc", "locale")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image in an *archive* of `docker save` with uncompressed layers."""

    name: str
    archive: Path

    @property
    def size_bytes(self) -> int:
        """Returns the uncompressed size of all layers, which the disk of a node contains."""
        return self.archive.stat().st_size


def require_builder() -> None:
    """Raises `HarnessError` with what is missing to build images."""
    if _lacks_buildah() and docker_responds():
        return
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        raise HarnessError(f"Images are built by {' and '.join(lacking)}: `setup.sh packages` installs them.")
    if os.geteuid() != 0:
        raise HarnessError("Building images needs root.")


def build(target: str, *, version: str) -> Image:
    """Builds `mirrorflow/<target>:<version>`. Unchanged layers and archives are reused."""
    require_builder()
    name = f"{REPOSITORY}/{target}:{version}"
    with _store():
        if _lacks_buildah():
            return _built_by_docker(name, target, version)
        # The replacement has no digest, so the build uses only the name.
        base = re.findall(r"^ARG PYTHON=(python:[^\s@]+)", DOCKERFILE.read_text(), re.MULTILINE)[0]
        _provide_base(base)
        options = (
            "--isolation=chroot",
            "--layers",
            "--network=host",
            "--pull-never",
            f"--build-arg=PYTHON={base}",
        )
        links = _links_to_spark() if target == "seed" else ()
        _buildah("build", *options, *links, f"--target={target}", f"--tag={name}", str(ROOT))
        key = _buildah("images", "--quiet", "--no-trunc", name).strip().removeprefix("sha256:")
        archive = STORE / f"{target}-{version}-{key[:16]}.tar"
        if not archive.exists():
            for old in STORE.glob(f"{target}-{version}-*"):
                old.unlink()
            unfinished = archive.with_suffix(".unfinished")
            _buildah("push", "--quiet", name, f"docker-archive:{unfinished}:{name}")
            unfinished.rename(archive)
    return Image(name=name, archive=archive)


def _lacks_buildah() -> bool:
    return os.geteuid() != 0 or any(shutil.which(name) is None for name in COMMANDS)


def _built_by_docker(name: str, target: str, version: str) -> Image:
    """Builds with Docker, which reuses its cache and pulls the official base image once."""
    _run("docker", "build", "--quiet", "--network=host", f"--target={target}", f"--tag={name}", str(ROOT))
    archive = STORE / f"{target}-{version}-docker.tar"
    _run("docker", "save", f"--output={archive}", name)
    return Image(name=name, archive=archive)


@contextmanager
def _store() -> Iterator[None]:
    """Holds a lock, so that one process builds at a time."""
    STORE.mkdir(parents=True, exist_ok=True)
    with (STORE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _links_to_spark() -> tuple[str, ...]:
    """Returns options with which pip also uses this machine's wheel of PySpark."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pyspark = next(package for package in extras["seed"] if package.startswith("pyspark"))
    wheels, settings = STORE / "wheels", STORE / "pip.conf"
    quietly = ("--quiet", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "wheel", *quietly, "--no-deps", f"--wheel-dir={wheels}", pyspark)
    settings.write_text(f"[global]\nfind-links = {WHEELS_MOUNT}\n")
    return (f"--volume={wheels}:{WHEELS_MOUNT}:ro", f"--volume={settings}:/etc/pip.conf:ro")


def _provide_base(image: str) -> None:
    """Creates *image*, such as `python:3.13-slim`, unless the store has it."""
    name = f"docker.io/library/{image}"
    if _buildah("images", "--quiet", "--filter", f"reference={name}").strip():
        return
    match = re.fullmatch(r"python:(3\.\d+)-slim", image)
    if match is None or match[1] not in DEBIAN:
        raise HarnessError(
            f"No substitute for {image} is known: pull it into {STORE}, or add its Debian release."
        )
    with tempfile.TemporaryDirectory(dir=STORE, prefix="unfinished-") as folder:
        root = Path(folder) / "root"
        excludes = [f"--dpkgopt=path-exclude=/usr/share/{folder_name}/*" for folder_name in EXCLUDED_FOLDERS]
        options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}", "--format=directory", *excludes)
        _run("mmdebstrap", *options, DEBIAN[match[1]], str(root))
        _complete_base(root)
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, str(root), "/")
        _buildah("config", f"--env=PATH={SEARCH_PATH}", "--env=LANG=C.UTF-8", "--cmd=python3", container)
        _buildah("commit", "--quiet", "--rm", container, name)


def _complete_base(root: Path) -> None:
    """Adds what the official image has: commands in /usr/local/bin and a pip that may install.

    Also adds this machine's CAs.
    """
    commands = root / "usr" / "local" / "bin"
    for name in ("python", "python3"):
        (commands / name).symlink_to("/usr/bin/python3")
    (commands / "pip").symlink_to("/usr/bin/pip3")
    for file in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        file.unlink()
    for pattern in ("var/lib/apt/lists/*", "var/cache/apt/*"):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if AUTHORITIES.exists():  # pip may need to trust a proxy of this machine
        shutil.copyfile(AUTHORITIES, root / AUTHORITIES.relative_to("/"))


def _buildah(*arguments: str) -> str:
    return _run("buildah", f"--root={STORE / 'storage'}", f"--runroot={STORE / 'run'}", *arguments)


def _run(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_WAIT_S)
    if process.returncode:
        output = (process.stderr or process.stdout).strip().splitlines()
        raise HarnessError(f"{' '.join(command)} failed:\n" + "\n".join(output[-20:]))
    return process.stdout
