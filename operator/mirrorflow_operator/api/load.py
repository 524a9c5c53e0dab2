"""Loads a MirrorFlow from YAML text, or reports all errors in it at once.

`yaml_text` parses YAML, `field_errors` converts pydantic's errors, and `rules.table` checks rules between
fields.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mirrorflow_operator.api.field_errors import field_errors
from mirrorflow_operator.api.rules.table import check
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.yaml_text import read_document
from mirrorflow_operator.errors import InvalidSpecError


def load_flow(text: str) -> MirrorFlow:
    """Returns the MirrorFlow in *text*, valid by types and rules. Raises InvalidSpecError with all errors."""
    return flow_of(read_document(text))


def flow_of(document: Mapping[str, Any]) -> MirrorFlow:
    """Returns the MirrorFlow in a parsed document; errors as in `load_flow`."""
    try:
        # As strict JSON, like the API server, which does not accept a quoted number.
        flow = MirrorFlow.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise InvalidSpecError(field_errors(error)) from error
    slips = check(flow)
    if slips:
        raise InvalidSpecError(slips)
    return flow
