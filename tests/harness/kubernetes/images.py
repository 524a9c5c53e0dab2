"""MirrorFlow's own images for a node: built from the repository's Dockerfile, without an engine, a daemon or a registry.

    image = build("replicator", version="0.1.0")
    cluster.load(image.archive)

buildah follows the Dockerfile as it stands; where it or root is missing and Docker answers, Docker does. With buildah the image that it begins with must be known under its name: one that was
pulled into our store, or else a stand-in, which is Debian's own Python of the same version (mmdebstrap makes it, half a minute,
once). All that is kept lies in images/ beside the programs that setup.sh builds. Needs root.

PySpark is half a gigabyte of source that pip makes a wheel of: `seed` takes the wheel that the work tree's own pip has made,
or makes it there, so that a machine fetches it once.
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
from tests.harness.kubernetes.kind import docker_answers

ROOT = Path(__file__).parents[3]
STORE = CACHE / "images"
DOCKERFILE = ROOT / "Dockerfile"
INSTALLED = ("operator", "replicator")  # what each release needs
TARGETS = (*INSTALLED, "seed")
VERSION = "0.1.0"
REPOSITORY = "docker.io/mirrorflow"  # what `mirrorflow/operator` means to a container runtime
COMMANDS = ("buildah", "mmdebstrap")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_WAIT_S = 900.0  # half a minute alone
# The Debian release whose python3 is the version that the Dockerfile names.
DEBIAN = {"3.11": "bookworm", "3.13": "trixie"}
PACKAGES = "python3,python3-pip,ca-certificates"
FOUND_AT = "/mnt/wheels"  # in a build
LEFT_OUT = ("man", "doc", "locale")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """*archive* is what `docker save` writes, layers uncompressed."""

    name: str
    archive: Path

    @property
    def size_bytes(self) -> int:
        """Of all layers, uncompressed: what a node's disk holds."""
        return self.archive.stat().st_size


def require_builder() -> None:
    """`HarnessError` that names what images cannot be built without."""
    if _lacks_buildah() and docker_answers():
        return
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        raise HarnessError(f"Images are built by {' and '.join(lacking)}: `setup.sh packages` installs them.")
    if os.geteuid() != 0:
        raise HarnessError("Building images needs root.")


def build(target: str, *, version: str) -> Image:
    """`mirrorflow/<target>:<version>`; what has not changed since the last time is taken from there."""
    require_builder()
    name = f"{REPOSITORY}/{target}:{version}"
    with _store():
        if _lacks_buildah():
            return _built_by_docker(name, target, version)
        # The stand-in has no digest, so the build begins with the name alone.
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
    """Docker's own cache has what has not changed; the official image that it begins with is pulled, once."""
    _run("docker", "build", "--quiet", "--network=host", f"--target={target}", f"--tag={name}", str(ROOT))
    archive = STORE / f"{target}-{version}-docker.tar"
    _run("docker", "save", f"--output={archive}", name)
    return Image(name=name, archive=archive)


@contextmanager
def _store() -> Iterator[None]:
    """One builder at a time."""
    STORE.mkdir(parents=True, exist_ok=True)
    with (STORE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _links_to_spark() -> tuple[str, ...]:
    """Options of a build in which pip finds PySpark's wheel beside the index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = next(one for one in extras["seed"] if one.startswith("pyspark"))
    wheels, settings = STORE / "wheels", STORE / "pip.conf"
    quietly = ("--quiet", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "wheel", *quietly, "--no-deps", f"--wheel-dir={wheels}", wanted)
    settings.write_text(f"[global]\nfind-links = {FOUND_AT}\n")
    return (f"--volume={wheels}:{FOUND_AT}:ro", f"--volume={settings}:/etc/pip.conf:ro")


def _provide_base(image: str) -> None:
    """*image* as `python:3.13-slim`; does nothing where it is known already."""
    name = f"docker.io/library/{image}"
    if _buildah("images", "--quiet", "--filter", f"reference={name}").strip():
        return
    found = re.fullmatch(r"python:(3\.\d+)-slim", image)
    if found is None or found[1] not in DEBIAN:
        raise HarnessError(
            f"No stand-in for {image} is known: pull it into {STORE}, or add its Debian release."
        )
    with tempfile.TemporaryDirectory(dir=STORE, prefix="unfinished-") as folder:
        root = Path(folder) / "root"
        excludes = [f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in LEFT_OUT]
        options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}", "--format=directory", *excludes)
        _run("mmdebstrap", *options, DEBIAN[found[1]], str(root))
        _resemble_the_official(root)
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, str(root), "/")
        _buildah("config", f"--env=PATH={SEARCH_PATH}", "--env=LANG=C.UTF-8", "--cmd=python3", container)
        _buildah("commit", "--quiet", "--rm", container, name)


def _resemble_the_official(root: Path) -> None:
    """Commands in /usr/local/bin, a pip that may install, no package lists; and this machine's certificate authorities."""
    commands = root / "usr" / "local" / "bin"
    for name in ("python", "python3"):
        (commands / name).symlink_to("/usr/bin/python3")
    (commands / "pip").symlink_to("/usr/bin/pip3")
    for file in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        file.unlink()
    for pattern in ("var/lib/apt/lists/*", "var/cache/apt/*"):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if AUTHORITIES.exists():  # pip may meet a proxy of this machine's own
        shutil.copyfile(AUTHORITIES, root / AUTHORITIES.relative_to("/"))


def _buildah(*arguments: str) -> str:
    return _run("buildah", f"--root={STORE / 'storage'}", f"--runroot={STORE / 'run'}", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_WAIT_S)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise HarnessError(f"{' '.join(command)} failed:\n" + "\n".join(said[-20:]))
    return done.stdout
