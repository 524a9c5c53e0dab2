"""Pydantic's JSON schema -> the structural schema that the API server takes.

Kubernetes knows neither references nor null nor unions (KEP-2337, "Structural schemas"): references are put in place,
"T or null" becomes an optional T, "integer or quantity" becomes `x-kubernetes-int-or-string`, and what only people or
pydantic read (titles, examples) is left out. Unknown fields are pruned by the server, so `additionalProperties: false`
says nothing there. Names of map entries are checked by rules (`cel`), because a structural schema has no word for them.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]
DEPTH_MAX: Final = 20  # a type that holds itself has no structural schema
EMPTY: Final[tuple[Any, ...]] = (
    None,
    "",
    [],
)  # absent means the same; as a default it would only be noise in every diff
_BOUNDS: Final = ("minimum", "pattern", "maxLength")  # each is judged on the kind of value that it is about
# Members that a default has put there belong to nobody, so server-side apply would join them to those of the first
# manager who names some: `include: [orders]` would still copy `.*`.
JOINED: Final = frozenset({"set", "map"})
LEFT_OUT: Final = frozenset({"title", "examples", "propertyNames", "patternProperties"})


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of *model*, every reference in place. Raises ValueError for what has none."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _converted(schema, schema.get("$defs", {}), path=model.__name__, depth=0)


def _converted(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str, depth: int) -> Schema:
    if depth > DEPTH_MAX:
        raise ValueError(f"{path} holds itself, which no structural schema can say")
    flat = _in_place(dict(schema), definitions, path)
    result = {key: value for key, value in flat.items() if key not in LEFT_OUT and key != "$defs"}
    below = depth + 1
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "properties" in result:
        result["properties"] = {
            name: _converted(one, definitions, path=f"{path}.{name}", depth=below)
            for name, one in result["properties"].items()
        }
        result.pop("additionalProperties", None)
        result = _with_default(result)
    elif result.get("type") == "object":
        values = next(
            iter(flat.get("patternProperties", {}).values()), result.pop("additionalProperties", None)
        )
        if isinstance(values, Mapping):
            result["additionalProperties"] = _converted(values, definitions, path=f"{path}.*", depth=below)
    if "items" in result:
        result["items"] = _converted(result["items"], definitions, path=f"{path}[]", depth=below)
        result["items"].pop("default", None)
    if result.get("default", ...) in EMPTY or result.get("x-kubernetes-list-type") in JOINED:
        result.pop("default", None)
    if "type" not in result and "x-kubernetes-int-or-string" not in result:
        raise ValueError(f"{path} has no type")
    return result


def _in_place(schema: Schema, definitions: Mapping[str, Any], path: str) -> Schema:
    """*schema* with its reference, and its union if that is one of a type and null, resolved; own words win."""
    while True:
        if "$ref" in schema:
            name = schema.pop("$ref").removeprefix("#/$defs/")
            schema = {**definitions[name], **schema}
        elif "anyOf" in schema:
            members = [one for one in schema.pop("anyOf") if one.get("type") != "null"]
            if schema.get("x-kubernetes-int-or-string"):
                bounds = {key: one[key] for one in members for key in _BOUNDS if key in one}
                return {**bounds, **schema}
            if len(members) != 1:
                if any(one.get("x-kubernetes-int-or-string") for one in members):
                    raise ValueError(f"{path} is a union of an int-or-string with more")
                raise ValueError(f"{path} is a union of {len(members)} types")
            schema = {**members[0], **schema}
        else:
            return schema


def _with_default(schema: Schema) -> Schema:
    """An object whose fields are all optional is there by default, so that the defaults within it are set too.

    Only where it does not come with a default of its own (null: absent means something). The default is written out,
    because the API server evaluates rules on it as it stands.
    """
    if "default" in schema or schema.get("required"):
        return schema
    inner = {name: one["default"] for name, one in schema["properties"].items() if "default" in one}
    return {**schema, "default": inner}
