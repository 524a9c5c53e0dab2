"""Reads the files from which a Job in Kubernetes carries a switchover out; the operator writes them (plan/switchover_objects.py).

    switchover.json                                            the request, and what the pair says
    forward-worker.properties, forward-source.properties       of the flow from the member that is left
    forward-checkpoint.properties                              of its groups; absent if none follows
    back-worker.properties, back-source.properties             of the flow back
    probe-source.properties                                    as forward-source, with the identity that tries the fence; may be absent
    target-probe-source.properties                             as back-source, with that of the other member; may be absent

The properties are those that the connectors of both flows read. Secrets in them are references, which each connection resolves.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import parse_properties
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import CheckpointSettings, ClientSettings, SourceSettings
from mirrorflow_core.switchover.canary import CanaryRequest
from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS, HookJobKind
from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_core.switchover.record import SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverType
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.switchover.hook_jobs import HookJobSettings
from mirrorflow_replicator.switchover.hooks import HookSettings, SwitchoverHook
from mirrorflow_replicator.switchover.loss_assessment import FlowProgress
from mirrorflow_replicator.switchover.network_policy_fence import FencePolicy, NetworkFenceSettings
from mirrorflow_replicator.switchover.pair_settings import EndpointObject, FenceKind, SwitchoverSettings

REQUEST_FILE: Final = "switchover.json"
# Since 2 there is the type Unplanned, which a process that does not know it would carry out as a planned one; 3 has a canary.
FORMATS: Final = frozenset({2, 3})


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverJob:
    """What a Job is to do. After *begin_until_ms* (since 1970) it begins nothing that the journal does not have."""

    id: str
    type: SwitchoverType
    settings: SwitchoverSettings
    allows_live_groups: bool
    begin_until_ms: int
    accepts_loss: bool = False
    last_seen: FlowProgress = field(default_factory=FlowProgress)  # what the flow's pods knew of the source
    canary: CanaryRequest | None = None  # of a rehearsal

    def record(self, now_ms: int) -> SwitchoverRecord:
        """Returns the request as a record that the journal does not have yet."""
        return SwitchoverRecord(
            id=self.id,
            pair=self.settings.pair,
            type=self.type,
            source=self.settings.source,
            to=self.settings.to,
            created_ms=now_ms,
            limits=self.settings.limits,
            allows_live_groups=self.allows_live_groups,
            accepts_loss=self.accepts_loss,
        )


def load_switchover_job(folder: Path) -> SwitchoverJob:
    """Returns what the files in *folder* ask for. Raises SettingError, OSError."""
    given = _request(folder)
    forward, back = _source(folder, "forward", "forward-source"), _source(folder, "back", "back-source")
    try:
        settings = SwitchoverSettings(
            pair=given["pair"],
            forward=forward,
            forward_groups=_groups(folder),
            back=back,
            fence=FenceKind(given["fence"]),
            except_principals=tuple(given["exceptPrincipals"]),
            fence_hook=_network_fence(given, forward) or _hook(given["fenceHook"], given, FENCE_KINDS),
            endpoint_hook=_hook(given["endpointHook"], given, (HookJobKind.PROMOTE,)),
            endpoint_object=_endpoint(given["endpoint"]),
            probe=_probe(folder, "forward", "probe-source"),
            target_probe=_probe(folder, "back", "target-probe-source"),
            max_lag_ms=given["maxLagMs"],
            verified_within_ms=given.get("verifiedWithinMs"),
            last_verification=_verification(given.get("verification")),
            limits=SwitchoverLimits(refused_ms=given["refusedMs"]),
        )
        return SwitchoverJob(
            id=given["id"],
            type=SwitchoverType(given["type"]),
            settings=settings,
            allows_live_groups=given["liveGroups"],
            begin_until_ms=given["beginUntilMs"],
            accepts_loss=given["acceptLoss"],
            last_seen=_last_seen(given["lastSeen"]),
            canary=_canary(given.get("canary")),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise _not_of_this_version(str(error)) from error


def _request(folder: Path) -> Mapping[str, Any]:
    given = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
    if not isinstance(given, dict) or given.get("format") not in FORMATS:
        raise _not_of_this_version(f"format {' or '.join(map(str, sorted(FORMATS)))} is expected")
    return given


def _not_of_this_version(problem: str) -> InvalidSettingError:
    return InvalidSettingError(
        key=REQUEST_FILE,
        problem=f"it was written by another version of the operator ({problem})",
        action="set spec.version of both flows to the operator's version",
    )


def _source(folder: Path, flow: str, file: str) -> SourceSettings:
    worker = (folder / f"{flow}-worker.properties").read_text(encoding="utf-8")
    read = load_standalone(worker, [(folder / f"{file}.properties").read_text(encoding="utf-8")])
    source = read.connectors[0].source
    if source is None:
        raise InvalidSettingError(
            key="connector.class",
            problem=f"{file}.properties has no source connector",
            action="enable the source connectors of both flows",
        )
    return source


def _groups(folder: Path) -> CheckpointSettings | None:
    file = folder / "forward-checkpoint.properties"
    if not file.exists():
        return None
    worker = (folder / "forward-worker.properties").read_text(encoding="utf-8")
    return parse_checkpoint(parse_properties(file.read_text(encoding="utf-8")), parse_properties(worker))


def _probe(folder: Path, flow: str, file: str) -> ClientSettings | None:
    if not (folder / f"{file}.properties").exists():
        return None
    return _source(folder, flow, file).source_admin


def _canary(given: Mapping[str, Any] | None) -> CanaryRequest | None:
    if given is None:
        return None
    return CanaryRequest(topic=str(given["topic"]), group=str(given["group"]))


def _hook(
    given: Mapping[str, Any] | None, request: Mapping[str, Any], kinds: tuple[HookJobKind, ...]
) -> SwitchoverHook | None:
    """Returns a hook: a command, or Jobs of *kinds*, which the operator prepares."""
    if given is None:
        return None
    timeout_s = float(given["timeoutSeconds"])
    if "jobsIn" in given:
        return HookJobSettings(
            namespace=given["jobsIn"],
            pair=request["pair"],
            switchover=request["id"],
            kinds=kinds,
            timeout_s=timeout_s,
        )
    return HookSettings(tuple(given["command"]), timeout_s)


def _network_fence(given: Mapping[str, Any], forward: SourceSettings) -> NetworkFenceSettings | None:
    """Returns what changes the NetworkPolicies that the operator prepares; None for other fences."""
    fence = given.get("networkFence")
    if fence is None:
        return None
    return NetworkFenceSettings(
        namespace=fence["namespace"],
        source=forward.source_alias,
        policies={
            alias: FencePolicy(name=policy["name"], digest=policy["digest"])
            for alias, policy in fence["policies"].items()
        },
        settle_s=float(fence["settleSeconds"]),
    )


def _endpoint(given: Mapping[str, Any] | None) -> EndpointObject | None:
    if given is None:
        return None
    return EndpointObject(
        kind=given["kind"],
        namespace=given["namespace"],
        name=given["name"],
        key=given["key"],
        values=dict(given["values"]),
    )


def _verification(given: Mapping[str, Any] | None) -> LastVerification | None:
    if given is None:
        return None
    return LastVerification(
        run=str(given["run"]), ended_ms=int(given["endedMs"]), is_equal=given["isEqual"] is True
    )


def _last_seen(given: Mapping[str, Any] | None) -> FlowProgress:
    """Returns the ends of the source that the flow's pods had read; each row is topic, partition, end and what is copied."""
    if given is None:
        return FlowProgress()
    rows = [
        (TopicPartition(str(row[0]), int(row[1])), int(row[2]), int(row[3])) for row in given["partitions"]
    ]
    return FlowProgress(
        ends={partition: end for partition, end, _ in rows},
        copied={partition: copied for partition, _, copied in rows},
        known_until_ms=given["knownUntilMs"],
    )
