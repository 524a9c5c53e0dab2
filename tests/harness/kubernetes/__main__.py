"""`python -m tests.harness.kubernetes up | down | load ARCHIVE... | images`: a cluster that stays, and MirrorFlow's images."""

import argparse
import sys
from pathlib import Path

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.images import TARGETS, VERSION, build
from tests.harness.kubernetes.installation import CACHE, CONTROL


def main() -> int:
    """Exit status 1 with a sentence when the cluster cannot be had."""
    parser = argparse.ArgumentParser(prog="tests.harness.kubernetes", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "load", "images"])
    parser.add_argument("archives", nargs="*", type=Path, help="images for the node, of load")
    asked = parser.parse_args()
    cluster = Cluster(folder=CACHE / "cluster")
    try:
        match asked.command:
            case "up":
                cluster.up(outlive=True)
                print(f"A cluster runs. `make cluster-down` ends it.\nexport KUBECONFIG={cluster.kubeconfig}")
                print(f"Its kubectl is {CONTROL / 'kubectl'}.")
            case "down":
                cluster.down()
            case "images":
                for target in TARGETS:
                    image = build(target, version=VERSION)
                    print(f"{image.name}: {image.size_bytes / 1e6:.0f} MB, {image.archive}")
            case _:
                cluster.load(*asked.archives)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
