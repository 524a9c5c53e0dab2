"""Keeps a second record of what a flow must never lose with its status, and reads it where the status lacks it. Pure.

A status can be lost: an older CRD prunes fields, an older operator's writes remove them, a restored resource has none,
and anybody with the right may write another one. Then the version and the id of a running flow would be those of a new
one, and a seed that has ended would run again. So annotations of the flow's ServiceAccount have them, too. They have a
field manager of their own: an operator of an earlier release leaves them alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.status import RestoreStatus, RunStatus, SeedStatus, Status, VerifyStatus
from mirrorflow_operator.status.observation import Admission, Resource
from mirrorflow_operator.status.spark_jobs import has_ended

FIELD_MANAGER: Final = "mirrorflow-operator-pins"
FLOW_ID: Final = "mirrorflow.io/flow-id"
VERSION: Final = "mirrorflow.io/version"
ENDED_SEED: Final = "mirrorflow.io/ended-seed"  # the run's id and its phase
ENDED_VERIFICATION: Final = "mirrorflow.io/ended-verification"
ENDED_RESTORE: Final = "mirrorflow.io/ended-restore"  # the run's id and its phase
_FLOW_KEY: Final = "mirrorflow.flow"
_NO_STATUS: Final = "The status of the flow was lost after this run had ended."


def pins_of(admission: Admission, status: Status) -> dict[str, str]:
    """Returns the annotations for a flow that is admitted; without empty ones."""
    verify = status.verify
    pins = {
        FLOW_ID: admission.flow_id,
        VERSION: admission.version,
        ENDED_SEED: _ended(status.seed),
        ENDED_RESTORE: _ended(status.restore),
        ENDED_VERIFICATION: verify.ended_run_id if verify is not None else "",
    }
    return {name: value for name, value in pins.items() if value}


def _ended(run: RunStatus | None) -> str:
    """Returns id and phase of a run that has ended; "" for others."""
    return f"{run.run_id} {run.phase}" if run is not None and has_ended(run, run.run_id) else ""


def with_pins(
    resource: Resource, annotations: Mapping[str, str], properties_files: Mapping[str, str]
) -> Resource:
    """Returns *resource* with a status that has what is pinned.

    *annotations*: of the flow's ServiceAccount. *properties_files*: of its source connector, in which a release
    without those annotations has written the id.
    """
    status, spec = resource.status, None if resource.flow is None else resource.flow.spec
    pinned: dict[str, Any] = {}
    id_ = annotations.get(FLOW_ID) or status.flow_id or _id_in(properties_files)
    if id_ != status.flow_id:
        pinned["flow_id"] = id_
    version = annotations.get(VERSION) or status.version
    if version != status.version:
        pinned["version"] = version
    run_id, _, phase = annotations.get(ENDED_SEED, "").partition(" ")
    is_asked_for = run_id and spec is not None and spec.seed is not None and spec.seed.run_id == run_id
    if is_asked_for and not has_ended(status.seed, run_id):
        pinned["seed"] = SeedStatus(run_id=run_id, phase=phase, message=_NO_STATUS)
    run_id, _, phase = annotations.get(ENDED_RESTORE, "").partition(" ")
    is_asked_for = run_id and spec is not None and spec.restore is not None and spec.restore.run_id == run_id
    if is_asked_for and not has_ended(status.restore, run_id):
        pinned["restore"] = RestoreStatus(run_id=run_id, phase=phase, message=_NO_STATUS)
    run_id = annotations.get(ENDED_VERIFICATION, "")
    is_asked_for = run_id and spec is not None and spec.verify is not None and spec.verify.run_id == run_id
    if is_asked_for and (status.verify is None or status.verify.ended_run_id != run_id):
        verify = status.verify or VerifyStatus()
        pinned["verify"] = verify.model_copy(update={"ended_run_id": run_id})
    return replace(resource, status=status.model_copy(update=pinned)) if pinned else resource


def _id_in(properties_files: Mapping[str, str]) -> str:
    for text in properties_files.values():
        id_ = dict(parse_properties(text)).get(_FLOW_KEY)
        if id_:
            return id_
    return ""
