"""YAML text -> MirrorFlow, or every slip in it at once.

What YAML means is `yaml_text`'s, what pydantic says `field_errors`', and what fields must be to each other `validate`'s.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mirrorflow_operator.api.field_errors import field_errors
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.validate import check
from mirrorflow_operator.api.yaml_text import read_document
from mirrorflow_operator.errors import InvalidSpecError


def load_flow(text: str) -> MirrorFlow:
    """The MirrorFlow in *text*, valid by type and by rule. Raises InvalidSpecError with all that is wrong."""
    return flow_of(read_document(text))


def flow_of(document: Mapping[str, Any]) -> MirrorFlow:
    """As `load_flow`, of a document that was parsed elsewhere."""
    try:
        # As JSON and strictly, for so does the API server: a number in quotes is no number to it.
        flow = MirrorFlow.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise InvalidSpecError(field_errors(error)) from error
    slips = check(flow)
    if slips:
        raise InvalidSpecError(slips)
    return flow
