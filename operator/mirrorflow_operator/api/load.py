"""Loads a MirrorFlow from YAML text, or reports all errors in it at once.

`yaml_text` parses YAML, and `rules.table` checks rules between fields. pydantic's own errors become
FieldErrors with the path that kubectl shows.
"""

import difflib
import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mirrorflow_operator.api import quantity
from mirrorflow_operator.api.rules.table import check
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.yaml_text import read_document
from mirrorflow_operator.errors import FieldError, InvalidSpecError

NAMED_FIELDS_MAX = 12  # valid fields named beside a wrong one; more would be unreadable


def field_errors(error: ValidationError) -> list[FieldError]:
    """Returns one error for each field; pydantic reports a wrong union member once for each branch."""
    details = error.errors(include_url=False, include_input=False)
    found: dict[str, FieldError] = {}
    for detail in details:
        inside = any(
            other is not detail and other["loc"][: len(detail["loc"])] == detail["loc"] for other in details
        )
        # pydantic also reports a list whose items are all wrong as too short, which is not a user error.
        if not (detail["type"] == "too_short" and inside):
            path = _path(detail["loc"])
            # For a number or quantity, a text was meant as a quantity.
            if path not in found or detail["type"] == "string_pattern_mismatch":
                found[path] = _field_error(detail)
    return list(found.values())


def _field_error(detail: ErrorDetails) -> FieldError:
    location = detail["loc"]
    path, kind, context = _path(location), detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_fields(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
        action = f"did you mean {near[0]}?" if near else "known here: " + ", ".join(known[:NAMED_FIELDS_MAX])
        return FieldError(path=path, message="it is not a field", action=action.rstrip("?"))
    field = _field_at(location)
    about = field.description.rstrip(".") if field is not None and field.description else ""
    if kind == "missing":
        return FieldError(path=path, message="it is missing", action=about)
    message = (
        detail["msg"]
        .removeprefix("Input ")
        .removeprefix("String ")
        .removeprefix("Tuple ")
        .removeprefix("Value error, ")
    )
    if kind == "string_type":
        message = "it should be a text; put it in quotes"
    elif kind in {"enum", "literal_error"}:
        message = f"it should be {context.get('expected', '')}"
    elif context.get("pattern") == quantity.PATTERN:
        message = "it should be a quantity such as 2, 500m or 256Mi"
    elif message.startswith("should"):
        message = f"it {message}"
    return FieldError(path=path, message=message, action=about)


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in {"int", "[key]"} and not part.startswith("constrained-"):
            text += f".{part}" if text else part
    return text or "the file"


def _known_fields(location: tuple[int | str, ...]) -> list[str]:
    model = _model_at(location)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _field_at(location: tuple[int | str, ...]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    model: type[BaseModel] | None = MirrorFlow
    field = None
    for name in names:
        found = (
            None
            if model is None
            else next((one for one in model.model_fields.values() if one.alias == name), None)
        )
        if found is None:
            return field
        field, model = found, _model_in(found.annotation)
    return field


def _model_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    if not any(isinstance(part, str) for part in location):
        return MirrorFlow
    field = _field_at(location)
    return None if field is None else _model_in(field.annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


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
    errors = check(flow)
    if errors:
        raise InvalidSpecError(errors)
    return flow
