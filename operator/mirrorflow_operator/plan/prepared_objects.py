"""Objects that the operator creates while a Switchover is under way, from a file in its ConfigMap. Pure.

The Job of the Switchover has the digest of the file: who may write ConfigMaps decides neither what runs with the token of a hook's
ServiceAccount nor whom a fence lets through.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.plan.fence_policies import FENCE_POLICIES_FILE
from mirrorflow_operator.plan.hook_jobs import HOOK_JOBS_FILE

# The annotation of a Job that has the digest of a file.
DIGEST_ANNOTATIONS: Final = {
    HOOK_JOBS_FILE: "mirrorflow.io/hook-jobs-digest",
    FENCE_POLICIES_FILE: "mirrorflow.io/fence-policies-digest",
}
Object = dict[str, Any]


def objects_text(objects: Sequence[Object]) -> str:
    """Returns objects as JSON, one a line."""
    return "[\n" + ",\n".join(json.dumps(item) for item in objects) + "\n]"


def text_digest(text: str) -> str:
    """Returns the digest of a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def digests_of(files: Mapping[str, str]) -> dict[str, str]:
    """Returns the annotations with the digests of those of *files* that have objects."""
    return {
        annotation: text_digest(files[name])
        for name, annotation in DIGEST_ANNOTATIONS.items()
        if name in files
    }


def digests_in(annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns the digests in the annotations of a Job by the file."""
    return {
        name: annotations[annotation]
        for name, annotation in DIGEST_ANNOTATIONS.items()
        if annotations.get(annotation)
    }
