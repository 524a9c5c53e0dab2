"""An object store with the S3 API, and a log of the requests that it has received.

It is the server of moto, a package of PyPI, which implements all of S3 that pyarrow uses, with objects in memory. It
runs as a separate process (`server.py`) in a separate environment, because moto needs botocore, which cannot be
installed beside the official Kubernetes client (docs/decisions/002-dependencies.md). `make test-spark` installs that
environment.
"""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness.kafka.processes import Child, HarnessError, accepts, free_port, start, wait_until

PYTHON: Final = Path(__file__).parents[3] / ".cache" / "object-store" / "venv" / "bin" / "python"
SERVER: Final = Path(__file__).with_name("server.py")
REGION: Final = "us-east-1"
# Any key is accepted. Without the last setting, a client may request an identity over the network.
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest:
    """A request with its method, the path with bucket and key, the size of its body, and the object that it copies, if
    any.
    """

    method: str
    path: str
    size_bytes: int
    copied: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A running store."""

    port: int
    log: Path

    def address(self, bucket: str, path: str) -> str:
        """Returns the address of a folder as users write it."""
        return f"s3://{bucket}/{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region={REGION}"

    def create_bucket(self, name: str) -> str:
        """Creates a bucket, and returns its name."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            return name

    def requests(self) -> list[StoreRequest]:
        """Returns all requests so far, in their order."""
        lines = self.log.read_text().splitlines(keepends=True)
        return [StoreRequest(**json.loads(line)) for line in lines if line.endswith("\n")]


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Starts a store without buckets, with its logs in *folder*, and yields it once it accepts connections."""
    if not PYTHON.exists():
        raise HarnessError(f"{PYTHON} is missing: run make test-spark, which installs it.")
    port, log = free_port(), folder / "requests.jsonl"
    log.touch()
    command = [str(PYTHON), str(SERVER), str(port), str(log)]
    child = start("object-store", command, log=folder / "object-store.log", environment=dict(CREDENTIALS))
    try:
        wait_until("the object store accepts connections", lambda: _is_up(child, port))
        yield ObjectStore(port=port, log=log)
    finally:
        child.kill()


def _is_up(child: Child, port: int) -> bool:
    child.must_run()
    return accepts(port)
