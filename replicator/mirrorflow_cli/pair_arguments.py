"""Reads the pair of a command from `-f FILE`, and plans a switchover of it in one direction."""

import argparse
from dataclasses import replace

from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_cli.flow_arguments import (
    checkpoint_settings,
    layout_from,
    read_text,
    source_settings,
    valid_plan,
)
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_core.switchover.fence_policies import policy_name
from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS
from mirrorflow_core.switchover.record import SwitchoverLimits
from mirrorflow_operator.api.authentication import Authentication
from mirrorflow_operator.api.mirror_pair import Hook, LoadedPair, load_pair
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.secret_layout import SecretLayout
from mirrorflow_replicator.switchover.hook_jobs import HookJobSettings
from mirrorflow_replicator.switchover.hooks import HookSettings, SwitchoverHook
from mirrorflow_replicator.switchover.network_policy_fence import FencePolicy, NetworkFenceSettings
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `-f FILE` and `--secrets DIR`."""
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help='YAML file of a MirrorPair and its two MirrorFlows ("-" for stdin); required',
    )
    parser.add_argument(
        "--secrets",
        metavar="DIR",
        default=".",
        help="directory of secrets, as DIR/<secretName>/<key> (default: .)",
    )


def pair_from(arguments: argparse.Namespace) -> LoadedPair:
    """Returns the pair given by *arguments*. Raises UsageError with all errors, one per line."""
    if not arguments.file:
        raise UsageError("Specify a pair: -f FILE.")
    try:
        return load_pair(read_text(arguments.file, "a MirrorPair and its MirrorFlows"))
    except InvalidSpecError as error:
        raise UsageError(
            "\n".join(f"{arguments.file}: {line}" for line in str(error).splitlines())
        ) from error


def switchover_settings(arguments: argparse.Namespace, loaded: LoadedPair, to: str) -> SwitchoverSettings:
    """Returns the settings of a switchover of *loaded* to the member *to*. Raises UsageError, SettingError."""
    spec, layout = loaded.pair.spec, layout_from(arguments)
    (source,) = (alias for alias in spec.members if alias != to)
    forward = _with_groups(loaded.flows[source], loaded)
    try:
        forward_groups = checkpoint_settings(valid_plan(forward, layout))
    except FailedError:
        forward_groups = None  # the checkpoint connector is disabled
    back = loaded.flows[to]
    within_s = spec.readiness.verified_within_seconds
    probe, target_probe, defaults = spec.members[source].probe, spec.members[to].probe, SwitchoverLimits()
    return SwitchoverSettings(
        pair=loaded.pair.metadata.name,
        forward=_source_settings(forward, layout),
        forward_groups=forward_groups,
        back=_source_settings(back, layout),
        fence=FenceKind(spec.fence.method.value),
        except_principals=spec.fence.except_principals,
        fence_hook=_network_fence(loaded, source) or _hook(spec.fence.hook),
        endpoint_hook=None if spec.endpoint is None else _hook(spec.endpoint.hook),
        probe=None if probe is None else _probe(forward, probe, layout),
        target_probe=None if target_probe is None else _probe(back, target_probe, layout),
        max_lag_ms=spec.readiness.max_lag_seconds * 1000,
        verified_within_ms=None if within_s is None else within_s * 1000,
        limits=replace(defaults, refused_ms=spec.deadline_seconds * 1000),
    )


def _source_settings(flow: MirrorFlow, layout: SecretLayout) -> SourceSettings:
    settings, _ = source_settings(valid_plan(flow, layout))
    return settings


def _with_groups(flow: MirrorFlow, loaded: LoadedPair) -> MirrorFlow:
    """Returns *flow* with the groups of the pair."""
    groups = flow.spec.groups.model_copy(
        update={"include": loaded.pair.spec.groups.include, "exclude": loaded.pair.spec.groups.exclude}
    )
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"groups": groups})})


def _probe(flow: MirrorFlow, identity: Authentication, layout: SecretLayout) -> ClientSettings:
    """Returns the client of the source of *flow* that authenticates as *identity*."""
    source = flow.spec.source.model_copy(update={"authentication": identity})
    spec = flow.spec.model_copy(update={"source": source})
    return _source_settings(flow.model_copy(update={"spec": spec}), layout).source_admin


def _network_fence(loaded: LoadedPair, source: str) -> SwitchoverHook | None:
    """Returns a fence that refuses each attempt with the cure: nothing has prepared its NetworkPolicies; None for other methods."""
    fence, pair = loaded.pair.spec.fence.network_policy, loaded.pair
    if fence is None:
        return None
    policies = {
        alias: FencePolicy(name=policy_name(pair.metadata.name, member.flow), digest="")
        for alias, member in pair.spec.members.items()
    }
    return NetworkFenceSettings(
        namespace=pair.metadata.namespace,
        source=source,
        policies=policies,
        settle_s=float(fence.settle_seconds),
    )


def _hook(hook: Hook | None) -> SwitchoverHook | None:
    if hook is None:
        return None
    timeout_s = float(hook.timeout_seconds)
    if hook.job is None:
        return HookSettings(hook.command or (), timeout_s)
    # Nothing has prepared its Jobs, so each attempt to run it is refused with the cure.
    return HookJobSettings(namespace="", pair="", switchover="", kinds=FENCE_KINDS, timeout_s=timeout_s)
