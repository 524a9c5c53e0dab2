"""Two examples of each command, with which its `--help` ends; also of `kubectl mirrorflow` and its commands."""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "run": (
        "mirrorflow run --from east:9092 --to west:9092 --topics 'orders.*'",
        "mirrorflow run -f flow.yaml --until-caught-up --time-limit 600",
    ),
    "status": ("mirrorflow status", "mirrorflow status east-to-west --json"),
    "ui": ("mirrorflow ui", "mirrorflow ui -f flow.yaml --port 9000"),
    "validate": ("mirrorflow validate -f flow.yaml", "mirrorflow validate -f a.yaml -f b.yaml --json"),
    "plan": ("mirrorflow plan -f flow.yaml", "mirrorflow plan -f flow.yaml --properties --offline"),
    "check": (
        "mirrorflow check -f flow.yaml",
        "mirrorflow check --from east:9092 --to-config west.properties --topics 'orders.*'",
    ),
    "acls": (
        "mirrorflow acls -f flow.yaml",
        "mirrorflow acls -f flow.yaml --target-principal User:mirror",
    ),
    "offsets": (
        "mirrorflow offsets -f flow.yaml --group billing --dry-run-failover",
        "mirrorflow offsets translate savepoint.csv -f flow.yaml",
    ),
    "dump": ("mirrorflow dump positions -f flow.yaml", "mirrorflow dump checkpoints -f flow.yaml --json"),
    "switchover": (
        "mirrorflow switchover -f pair.yaml --to west --rehearse --report rehearsal.json",
        "mirrorflow switchover rollback -f pair.yaml",
    ),
    "diverged": (
        "mirrorflow diverged -f pair.yaml --left east",
        "mirrorflow diverged keep -f pair.yaml --left east --topics --archive /backup/tail",
    ),
    "convert": ("mirrorflow convert mm2.properties", "mirrorflow convert strimzi.yaml --output flows"),
    "export": (
        "mirrorflow export -f flow.yaml > mm2.properties",
        "mirrorflow export -f a.yaml -f b.yaml > mm2.properties",
    ),
    "seed": ("mirrorflow seed -f flow.yaml", "mirrorflow seed -f flow.yaml --cores 8 --rate 50Mi"),
    "verify": ("mirrorflow verify -f flow.yaml", "mirrorflow verify -f flow.yaml --sample 0.1 --out results"),
    "archive": (
        "mirrorflow archive -f flow.yaml --archive archive --follow",
        "mirrorflow archive --from east:9092 --to west:9092 --topics orders --archive archive",
    ),
    "restore": (
        "mirrorflow restore -f flow.yaml --archive archive",
        "mirrorflow restore -f flow.yaml --archive archive --no-compare",
    ),
    "completion": (
        "mirrorflow completion bash > ~/.local/share/bash-completion/completions/mirrorflow",
        "source <(mirrorflow completion zsh)",
    ),
    "kubectl mirrorflow": (
        "kubectl mirrorflow status",
        "kubectl mirrorflow logs east-to-west checkpoint --follow",
    ),
    "kubectl mirrorflow status": (
        "kubectl mirrorflow status",
        "kubectl mirrorflow status east-to-west -n payments --json",
    ),
    "kubectl mirrorflow partitions": (
        "kubectl mirrorflow partitions east-to-west",
        "kubectl mirrorflow partitions east-to-west --context staging --json",
    ),
    "kubectl mirrorflow offsets": (
        "kubectl mirrorflow offsets east-to-west",
        "kubectl mirrorflow offsets east-to-west --group billing",
    ),
    "kubectl mirrorflow logs": (
        "kubectl mirrorflow logs east-to-west",
        "kubectl mirrorflow logs east-to-west seed --follow",
    ),
}


def examples_of(command: str) -> str:
    """Returns the end of the help of *command*."""
    return "\n  ".join(["examples:", *EXAMPLES[command]])
