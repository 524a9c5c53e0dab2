"""Manages a persistent cluster and images: `python -m tests.harness.kubernetes up

down

load ARCHIVE...

images

chosen`.

`chosen` prints what `setup.sh` has to provide: `kind`, or `cluster` for MirrorFlow's own node.
"""

import argparse
import sys
from pathlib import Path

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.choosing import choice, chosen_cluster
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.images import TARGETS, VERSION, build
from tests.harness.kubernetes.installation import CACHE, CONTROL
from tests.harness.kubernetes.kind import KindCluster


def main() -> int:
    """Returns exit status 1 with a message if the cluster cannot be started."""
    parser = argparse.ArgumentParser(
        prog="tests.harness.kubernetes", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("command", choices=["up", "down", "load", "images", "chosen"])
    parser.add_argument("archives", nargs="*", type=Path, help="images for the node, of load")
    arguments = parser.parse_args()
    folder = CACHE / "cluster"
    try:
        match arguments.command:
            case "up":
                _running(folder).down()
                cluster = chosen_cluster(folder=folder)
                cluster.up(outlive=True)
                print(
                    f"A cluster of {choice()} runs. `make cluster-down` ends it.\nexport KUBECONFIG={cluster.kubeconfig}"
                )
                print(f"Its kubectl is {CONTROL / 'kubectl'}.")
            case "down":
                _running(folder).down()
            case "chosen":
                print("kind" if choice() == "kind" else "cluster")
            case "images":
                for target in TARGETS:
                    image = build(target, version=VERSION)
                    print(f"{image.name}: {image.size_bytes / 1e6:.0f} MB, {image.archive}")
            case _:
                _running(folder).load(*arguments.archives)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _running(folder: Path) -> KindCluster | Cluster:
    """Returns the cluster that `up` has left, even if CLUSTER has changed since."""
    kind_cluster = KindCluster(folder=folder)
    return kind_cluster if kind_cluster.exists() else Cluster(folder=folder)


if __name__ == "__main__":
    raise SystemExit(main())
