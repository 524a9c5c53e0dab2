"""Runs the operator as a process of this machine, against any API server.

        with OperatorProcess(kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=["here"]) as operator:
            operator.wait_until_leading()
            operator.metric('api_writes_total{kind="deployments",verb="apply"}')

Its Lease has its own name, so that it waits for no other process, in the first of its namespaces or in `default`. The
Lease lasts as long as in production, because a shorter one expires on a busy machine, which ends the operator.
"""

import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.kafka.processes import Child, free_port, start, wait_until

RESPONSE_WAIT_S = 5.0
PREFIX = "mirrorflow_operator_"


@dataclass(kw_only=True, slots=True)
class OperatorProcess:
    """The process starts on entry and is killed on exit. Tests may stop or freeze `child`."""

    kubeconfig: Path
    folder: Path
    namespaces: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"operator-{uuid.uuid4().hex[:6]}")
    port: int = field(default_factory=free_port)
    child: Child = field(init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.child = start(
            self.name,
            [sys.executable, "-m", "mirrorflow_operator"],
            log=self.folder / f"{self.name}.log",
            environment={
                "KUBECONFIG": str(self.kubeconfig),
                "MIRRORFLOW_NAMESPACES": ",".join(self.namespaces),
                "MIRRORFLOW_LISTENER": f"127.0.0.1:{self.port}",
                "POD_NAMESPACE": self.namespaces[0] if self.namespaces else "default",
                "POD_NAME": self.name,
                "MIRRORFLOW_LEASE": self.name,
                **self.environment,
            },
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.thaw()
        self.child.kill()

    def get(self, path: str) -> tuple[int, str]:
        """Returns HTTP status and text of *path*, or status 0 while the operator does not listen."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=RESPONSE_WAIT_S
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """Returns a sample by its name without the prefix, or 0 if it is missing."""
        for line in self.get("/metrics")[1].splitlines():
            sample, _, value = line.rpartition(" ")
            if sample == PREFIX + name:
                return float(value)
        return 0.0

    @property
    def leads(self) -> bool:
        """Returns whether the operator holds the Lease and has read the cluster."""
        return self.metric("leader") == 1 and self.get("/readyz")[0] == 200

    @property
    def idle(self) -> bool:
        """Returns whether no reconciliation is due and no status waits to be written."""
        return self.leads and self.metric("queue_depth") == 0 and self.metric("statuses_held") == 0

    def wait_until_leading(self, timeout_s: float = 60.0) -> None:
        def leading() -> bool:
            self.child.must_run()
            return self.leads

        wait_until(f"{self.name} leads", leading, timeout_s=timeout_s)
