"""Defines one rule: its paths, its condition in CEL and in Python, and one message for both.

`validation` is an entry of the CRD's `x-kubernetes-validations`, with which the API server refuses a resource
before it is stored. `errors` finds the same errors for the `mirrorflow` command and the operator.

A message is *problem* and *action*. In both, `<<self.type>>` is a value of the resource, and `<<name>>` one
of the rule's *placeholders*. A message with values becomes `messageExpression` (Kubernetes 1.29). Where the server
cannot evaluate it (an entry has a line break), it prints `message`, so each rule has both. No message contains
a number: the server cannot bound the length of its text, and refuses expressions that it cannot bound.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field as default
from functools import cache
from itertools import chain
from typing import Any, Final, Literal

from pydantic.alias_generators import to_snake

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.errors import FieldError

Validation = dict[str, Any]
# Path -> each location that it names, with its value; none where a field is absent.
Locations = Callable[[str], list[tuple[str, Any]]]
_attribute = cache(to_snake)  # cached: it would be most of the time that a flow takes
_VALUE: Final = re.compile(r"<<(.*?)>>")
_IS_SAME_SPEC: Final = "oldSelf.hasValue() && oldSelf.value().spec == self.spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """Text in a message that is not simply a value: in CEL, in Python, and where CEL is not evaluated."""

    cel: str
    python: Callable[[Any], str]  # of the wrong value or member
    plain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is wrong with the value at each of *paths*, or with a member of it.

    With *member*, the conditions are about each entry of a list or each key of a map: CEL names it `entry` or
    `key`, and *is_violated* gets it before the value. *field*, below the path, is what the error names; with
    *member*, it is the list or map.
    """

    paths: tuple[
        str, ...
    ]  # such as spec.topics.include; [] means every member of a list, "" the whole resource
    violated_if: str  # CEL on `self`, the value
    is_violated: Callable[..., object] | None  # by truth; None: only the server knows the former value
    problem: str
    action: str
    field: str = ""
    member: Literal["", "entry", "key"] = ""
    placeholders: Mapping[str, Placeholder] = default(default_factory=dict)

    def validation(self) -> Validation:
        """Returns the rule for the API server."""
        message = f"{self.problem}; {self.action}"
        plain = self._without_values(message)
        if self.member == "key":
            message, plain = f"key <<key>>: {message}", f"a key is refused: {plain}"
        validation: Validation = {"rule": f"!({self.violated_if})", "message": plain}
        template = self._expression(message)
        if self.member:
            name, of = self.member, f"self.{self.field}" if self.field else "self"
            unless = f"!has({of}) || " if self.field else ""
            validation["rule"] = f"{unless}{of}.all({name}, !({self.violated_if}))"
            # Not filter(...).map(...): the server does not bound what a nested test leaves, and refuses the definition.
            template = f"{of}.map({name}, {self.violated_if}, {template})[0]"
        if _VALUE.search(message):
            validation["messageExpression"] = template
        if "" in self.paths:
            # The server leaves out rules on values that stay as they were. The whole resource changes with each status, so that of one
            # which was stored before the rule could not be written.
            validation |= {"rule": f"{_IS_SAME_SPEC} || {validation['rule']}", "optionalOldSelf": True}
        return validation | ({"fieldPath": f".{self.field}"} if self.field else {})

    def errors(self, locations: Locations) -> Iterator[FieldError]:
        """Yields an error for each wrong value in *locations*, or for each wrong member."""
        if self.is_violated is None:
            return
        for path, value in chain.from_iterable(map(locations, self.paths)):
            below = f"{path}.{self.field}".lstrip(".") if self.field else path
            if not self.member:
                if self.is_violated(value):
                    yield self._error(below, value, {"self": value})
                continue
            for index, member in _members(value_below(value, self.field)):
                if self.is_violated(member, value):
                    yield self._error(f"{below}[{index}]", member, {"self": value, self.member: member})

    def _error(self, path: str, invalid: Any, values: Mapping[str, Any]) -> FieldError:
        def shown(match: re.Match[str]) -> str:
            if match[1] in self.placeholders:
                return self.placeholders[match[1]].python(invalid)
            name, _, rest = match[1].removeprefix("string(").removesuffix(")").partition(".")
            value = value_below(values[name], rest)
            return str(getattr(value, "value", value))

        return FieldError(
            path=path, message=_VALUE.sub(shown, self.problem), action=_VALUE.sub(shown, self.action)
        )

    def _without_values(self, message: str) -> str:
        """Returns *message* without values; one at its start becomes "it" or "an entry"."""
        for name, placeholder in self.placeholders.items():
            message = message.replace(f"<<{name}>>", placeholder.plain)
        subject = "an entry" if self.member == "entry" else "it"
        return re.sub(r" '?<<.*?>>'?", "", re.sub(r"^'?<<.*?>>'?", subject, message))

    def _expression(self, template: str) -> str:
        """Returns the CEL expression of *template*: `it is <<self.type>>` -> `"it is " + self.type`."""
        parts = _VALUE.split(template)
        values = (self.placeholders[part].cel if part in self.placeholders else part for part in parts[1::2])
        parts[::2] = [quoted(part) if part else "" for part in parts[::2]]
        parts[1::2] = values
        return " + ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRule:
    """A rule that CEL cannot express: the server stores the resource, and the operator reports the error."""

    paths: tuple[str, ...]
    find: Callable[[Any], Iterable[tuple[str, str, str]]]  # value -> (end of the path, problem, action)

    def errors(self, locations: Locations) -> Iterator[FieldError]:
        """Yields what *find* finds at each location."""
        for path, value in chain.from_iterable(map(locations, self.paths)):
            for end, problem, action in self.find(value):
                yield FieldError(path=path + end, message=problem, action=action)


def quoted(text: str) -> str:
    """Returns a CEL string literal; in single quotes where it can be, because JSON escapes double ones in the CRD."""
    return (
        f"'{text}'"
        if text.isprintable() and not set("'\\") & set(text)
        else json.dumps(text, ensure_ascii=False)
    )


def starts_with(value: str, prefixes: Iterable[str]) -> str:
    """Returns the CEL condition that the expression *value* starts with one of *prefixes*."""
    return " || ".join(f"{value}.startsWith({quoted(prefix)})" for prefix in prefixes)


def immutable(path: str, former: str = "value <<oldSelf>>") -> Rule:
    """Returns the rule that the value at *path* stays what it was when the resource was created."""
    return Rule(
        paths=(path,),
        violated_if="self != oldSelf",
        is_violated=None,
        problem="it is immutable",
        action=f"restore the {former}, or create another MirrorFlow",
    )


def locations_of(resource: ApiModel) -> Locations:
    """Returns the function that finds each location that a path names; each path is followed once."""

    @cache
    def locations(path: str) -> list[tuple[str, Any]]:
        if not path:
            return [("", resource)]
        if path.endswith("[]"):
            above = locations(path.removesuffix("[]"))
            return [
                (f"{place}[{number}]", member)
                for place, value in above
                for number, member in enumerate(value)
            ]
        above, name = locations(path.rpartition(".")[0]), path.rpartition(".")[2]
        below = [(f"{place}.{name}" if place else name, value_below(value, name)) for place, value in above]
        return [(place, value) for place, value in below if value is not None]

    return locations


def value_below(value: Any, path: str) -> Any:
    """Returns the value at *path* (no lists) below *value*; None where a field is absent."""
    for name in path.split(".") if path else ():
        value = None if value is None else getattr(value, _attribute(name))
    return value


def _members(container: Any) -> Iterable[tuple[Any, Any]]:
    """Returns each entry of a list with its number, or each key of a map with itself."""
    return zip(container, container, strict=True) if isinstance(container, Mapping) else enumerate(container)
