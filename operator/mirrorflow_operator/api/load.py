"""Loads a MirrorFlow from YAML text, or reports all errors in it at once.

YAML is read with the value types of Kubernetes' JSON: texts that look like dates or times stay texts, `Off` is a text
and not a boolean, and a duplicate key is an error. The size of a file after alias expansion is limited, so
that a small file cannot use up all memory. `rules.table` checks rules between fields. pydantic's own errors
become FieldErrors with the path that kubectl shows.
"""

import copy
import difflib
import json
import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mirrorflow_operator.api.authentication import ABSOLUTE_PATH, AWS_REGION, AWS_ROLE
from mirrorflow_operator.api.model import QUANTITY_PATTERN
from mirrorflow_operator.api.rules.table import check
from mirrorflow_operator.api.spark_workloads import ARCHIVE_URL_PATTERN
from mirrorflow_operator.api.spec import CONTEXT, MirrorFlow
from mirrorflow_operator.api.workloads import FIELD_PATH_PATTERN
from mirrorflow_operator.errors import FieldError, InvalidSpecError

Resource = TypeVar("Resource", bound=BaseModel)
NESTING_MAX = 64  # a MirrorFlow has about 15 levels, with pod templates
SHOWN_LEVELS = 8  # of a path that is nested too deeply
# Values and keys after alias expansion; an object within the 1.5 MB limit of etcd has fewer.
NODES_MAX = 200_000
_BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_WITH_COLON = re.compile(
    r"^[-+]?[0-9][0-9_]*(?::[0-9_]+)+(?:\.[0-9_]*)?$"
)  # 12:30, a number of base 60 in YAML 1.1 alone
# Forms of texts in words, by the expression that checks them: a user reads no regular expressions.
_LABEL = "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
_FORMS: Mapping[str, str] = MappingProxyType(
    {
        r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": "a range of addresses, such as 10.0.0.0/16",
        QUANTITY_PATTERN: "a quantity such as 2, 500m or 256Mi",
        r"^[a-zA-Z0-9._-]+$": "letters, digits, '.', '_' and '-'",
        r"^[a-zA-Z0-9._-]*$": "letters, digits, '.', '_' and '-'",
        r"^[-._a-zA-Z0-9]*$": "letters, digits, '.', '_' and '-'",
        r"^[a-zA-Z0-9._>@-]+$": "letters, digits, '.', '_', '-', '>' and '@', such as east-to-west",
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "lower-case letters, digits, '-' and '.', such as east-mirror",
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lower-case letters, digits and '-', such as east-to-west",
        r"^\.{0,2}[-_a-zA-Z0-9][-._a-zA-Z0-9]*$": "the name of a key, such as ca.crt",
        r"^[a-zA-Z][a-zA-Z0-9._-]*$": "the name of a property, such as client.rack",
        r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$": (
            f"{_LABEL}, after an optional prefix/"
        ),
        r"^([a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?)?$": _LABEL,
        AWS_REGION: "an AWS region, such as eu-west-1",
        AWS_ROLE: "the ARN of a role, such as arn:aws:iam::123456789012:role/mirror",
        ABSOLUTE_PATH: "a path that begins with /",
        r"^https?://\S+$": "a URL that begins with https:// or http://",
        r"^https?://[^\s@?]+$": "a URL without user and query, such as https://registry.example:8081",
        r"^[a-z][a-z0-9+.-]*://\S+$": "an address such as hdfs://namenode:8020/spark-events",
        ARCHIVE_URL_PATTERN: "the address of a store that all pods reach (s3://, gs://, abfs:// or hdfs://), such as s3://bucket/orders",
        CONTEXT: "the name of a context, which begins with a dot, such as .east",
        FIELD_PATH_PATTERN: "a field of the pod, such as metadata.name, status.podIP or metadata.labels['app']",
        r"^/mnt/[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$": "a path below /mnt, such as /mnt/secrets-store",
        r"^(/[A-Za-z0-9_.-]+)+$": "a path that begins with /, such as /var/cache",
        r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and '_', not beginning with a digit",
        r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:.]*)$": "an IP address, such as 10.0.0.1",
        r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$": "an image, such as registry.example/mirrorflow:1.0",
        r"^[^:\s]+:.+$": "a principal with its type, such as User:mirror",
        r"^[A-Za-z0-9_+/-]+$": "a time zone, such as UTC or Europe/Berlin",
        r"^(0(\.[0-9]+)?|1(\.0+)?)$": 'a number from 0 to 1, in quotes, such as "0.1"',
    }
)
# What is wrong, by pydantic's type of an error; {name} is a value of the error's context.
_PROBLEMS: Mapping[str, str] = MappingProxyType(
    {
        "missing": "it is missing",
        "string_type": "it should be a text; put it in quotes",
        "int_type": "it should be a whole number, without quotes",
        "bool_type": "it should be true or false, without quotes",
        "model_type": "it should be an object with fields of its own",
        "dict_type": "it should be an object with fields of its own",
        "tuple_type": "it should be a list: [a, b], or a line that begins with - for each entry",
        "too_short": "it should have at least {min_length} entry",
        "too_long": "it should have at most {max_length} entries",
        "string_too_short": "it is empty",
        "string_too_long": "it should have at most {max_length} characters",
        "greater_than_equal": "it should be at least {ge}",
        "less_than_equal": "it should be at most {le}",
        "enum": "it should be {expected}",
        "literal_error": "it should be {expected}",
    }
)


class _KubernetesLoader(yaml.SafeLoader):
    """Loads scalars and keys as JSON has them, refuses duplicate keys, and limits depth and size."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._counts: dict[int, int] = {}  # number of nodes in each complete node, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes a node. Refuses deep nesting, and aliases that expand to too much or to themselves."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth == NESTING_MAX:
            raise yaml.composer.ComposerError(
                None, None, f"it is nested deeper than {NESTING_MAX} levels", mark
            )
        before, is_alias = self._count, self.check_event(yaml.AliasEvent)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._counts:
            raise yaml.composer.ComposerError(None, None, "an alias refers to a node that contains it", mark)
        self._count += self._counts[id(node)] if is_alias else 1
        if self._count > NODES_MAX:
            raise yaml.composer.ComposerError(None, None, f"it has more than {NODES_MAX} values", mark)
        self._counts[id(node)] = self._count - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Builds a mapping. Refuses duplicate keys, of which the first would be silently dropped."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be a scalar; render {{ ... }} of a template first"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} is a duplicate", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_KubernetesLoader.yaml_implicit_resolvers = {
    letter: [
        ("tag:yaml.org,2002:str", _WITH_COLON),
        *(
            (tag, pattern)
            for tag, pattern in resolvers
            if tag not in {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}
        ),
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_KubernetesLoader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfF"))


def read_document(text: str) -> Mapping[str, Any]:
    """Returns the one object in *text*. Raises InvalidSpecError, with the line if the YAML is invalid."""
    documents = read_documents(text)
    if len(documents) != 1:
        problem = "it is empty" if not documents else f"it contains {len(documents)} documents"
        raise _error(problem, "write one MirrorFlow into it")
    return documents[0]


def read_documents(text: str) -> list[Mapping[str, Any]]:
    """Returns the objects in *text*. Raises InvalidSpecError, with the line if the YAML is invalid."""
    try:
        documents = [document for document in yaml.load_all(text, _KubernetesLoader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "the file"
        raise _error(f"invalid YAML: {error.problem}", "correct the text there", path=where) from error
    except yaml.YAMLError as error:
        raise _error("it contains characters that YAML does not allow", "save it as UTF-8 text") from error
    if not all(isinstance(document, dict) for document in documents):
        raise _error("it contains no object", "begin with apiVersion, kind, metadata, spec")
    return documents


def _error(message: str, action: str, *, path: str = "the file") -> InvalidSpecError:
    return InvalidSpecError([FieldError(path=path, message=message, action=action)])


def field_errors(error: ValidationError, root: type[BaseModel] = MirrorFlow) -> list[FieldError]:
    """Returns one error for each field of the resource *root*; pydantic reports a wrong union member once for each branch."""
    details = error.errors(include_url=False, include_input=False)
    errors: dict[str, FieldError] = {}
    for detail in details:
        inside = any(
            other is not detail and other["loc"][: len(detail["loc"])] == detail["loc"] for other in details
        )
        # pydantic also reports a list whose items are all wrong as too short, which is not a user error.
        if not (detail["type"] == "too_short" and inside):
            path = _path(detail["loc"])
            # In a field of a number or a quantity, a text is an attempt at a quantity.
            if path not in errors or detail["type"] == "string_pattern_mismatch":
                errors[path] = _field_error(detail, root)
    return list(errors.values())


def _field_error(detail: ErrorDetails, root: type[BaseModel]) -> FieldError:
    location = detail["loc"]
    path, kind, context = _path(location), detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        model = _model_at(location[:-1], root)
        known = (
            []
            if model is None
            else [model_field.alias or name for name, model_field in model.model_fields.items()]
        )
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
        action = f"did you mean {near[0]}?" if near else "known fields: " + ", ".join(known)
        return FieldError(path=path, message="it is not a field", action=action)
    if kind == "string_pattern_mismatch":
        return FieldError(
            path=path, message=f"it should be {_FORMS.get(context['pattern'], 'of another form')}"
        )
    message = _PROBLEMS.get(kind, "it is not valid").format(**context)
    # The possible values describe a field of a few words well enough.
    field = None if "expected" in context else _field_at(location, root)
    about = field.description.rstrip(".") if field is not None and field.description else None
    return FieldError(path=path, message=message, action=about)


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in {"int", "[key]"} and not part.startswith("constrained-"):
            text += f".{part}" if text else part
    return text or "the file"


def _field_at(location: tuple[int | str, ...], root: type[BaseModel]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    model: type[BaseModel] | None = root
    field = None
    for name in names:
        candidate = (
            None
            if model is None
            else next(
                (model_field for model_field in model.model_fields.values() if model_field.alias == name),
                None,
            )
        )
        if candidate is None and field is not None and get_origin(field.annotation) is dict:
            continue  # a key of the map
        if candidate is None:
            return field
        field, model = candidate, _model_in(candidate.annotation)
    return field


def _model_at(location: tuple[int | str, ...], root: type[BaseModel]) -> type[BaseModel] | None:
    if not any(isinstance(part, str) for part in location):
        return root
    field = _field_at(location, root)
    return None if field is None else _model_in(field.annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _without_empty(value: Any, annotation: Any) -> Any:
    """Returns *value*, of a field with *annotation*, without empty values of known fields and of maps.

    An empty value (null) is an absent one: the API server removes it before it applies defaults.
    """
    if isinstance(value, list):
        return [_without_empty(entry, annotation) for entry in value]
    if not isinstance(value, Mapping):
        return value
    model = _model_in(annotation)
    if model is None:
        is_preserved = Any in get_args(annotation)  # the server stores an object of Kubernetes as it is
        return {key: entry for key, entry in value.items() if is_preserved or entry is not None}
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {
        key: _without_empty(entry, fields.get(key))
        for key, entry in value.items()
        if entry is not None or key not in fields
    }


def load_flow(text: str) -> MirrorFlow:
    """Returns the MirrorFlow in *text*, valid by types and rules. Raises InvalidSpecError with all errors."""
    return parse_flow(read_document(text))


def parse_flow(document: Mapping[str, Any]) -> MirrorFlow:
    """Returns the MirrorFlow in a parsed document; errors as in `load_flow`."""
    try:
        flow = validated(document, MirrorFlow)
    except ValidationError as error:
        raise InvalidSpecError(field_errors(error)) from error
    errors = check(flow)
    if errors:
        raise InvalidSpecError(errors)
    return flow


def parse_stored_flow(document: Mapping[str, Any]) -> tuple[MirrorFlow, tuple[FieldError, ...]]:
    """Returns the MirrorFlow that the API server has stored, and a warning for each field that is left out."""
    document, newer = without_newer_fields(document, MirrorFlow)
    return parse_flow(document), newer


def without_newer_fields(
    document: Mapping[str, Any], root: type[BaseModel]
) -> tuple[Mapping[str, Any], tuple[FieldError, ...]]:
    """Returns the resource *root* in *document* as stored, without fields of a newer CRD, and a warning for each of them.

    The server drops fields that its CRD does not have. So an unknown one is of a newer CRD, which stays after an operator
    was rolled back, and may be no more than that CRD's default.
    """
    newer: tuple[FieldError, ...] = ()
    try:
        validated(document, root)
    except ValidationError as error:
        document = copy.deepcopy(dict(document))
        newer = tuple(
            FieldError(
                path=_path(detail["loc"]),
                message="this operator is older than the field, which has no effect",
                action="upgrade the operator",
            )
            for detail in error.errors(include_url=False, include_input=False)
            if detail["type"] == "extra_forbidden" and _removed(document, detail["loc"])
        )
    return document, newer


def _check_nesting(document: Any) -> None:
    """Raises InvalidSpecError if *document* has more levels than a resource needs, before a recursive function reads it.

    The API server stores up to 10,000 levels in a field whose schema is open, such as affinity.
    """
    left: list[tuple[Any, tuple[int | str, ...]]] = [(document, ())]
    while left:
        value, location = left.pop()
        if len(location) > NESTING_MAX:
            raise _error(
                f"it is nested deeper than {NESTING_MAX} levels",
                "remove what Kubernetes does not know",
                path=_path(location[:SHOWN_LEVELS]),
            )
        if isinstance(value, Mapping):
            left.extend((entry, (*location, key)) for key, entry in value.items())
        elif isinstance(value, list):
            left.extend((entry, (*location, index)) for index, entry in enumerate(value))


def _removed(document: Any, location: tuple[int | str, ...]) -> bool:
    """Removes the value at *location* and returns whether it was there."""
    *above, last = location
    for part in above:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(document, dict) and document.pop(last, document) is not document


def validated(document: Mapping[str, Any], root: type[Resource]) -> Resource:
    """Returns the resource *root* in *document*, valid by its types. Raises ValidationError, or InvalidSpecError if it is nested too deeply."""
    _check_nesting(document)
    content = _without_empty(document, root)
    # As strict JSON, like the API server, which does not accept a quoted number.
    return root.model_validate_json(json.dumps(content, default=str), strict=True)
