"""Reads one object from YAML with the value types of Kubernetes' JSON.

Texts that look like dates stay texts, `Off` is a text and not a boolean, and a duplicate key is an error. The
size of a file after alias expansion is limited, so that a small file cannot use up all memory.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from mirrorflow_operator.errors import FieldError, InvalidSpecError

NESTING_MAX = 64  # a MirrorFlow has about 15 levels, with pod templates
# Values and keys after alias expansion; an object within the 1.5 MB limit of etcd has fewer.
NODES_MAX = 200_000
_BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _KubernetesLoader(yaml.SafeLoader):
    """SafeLoader with JSON's idea of scalars and keys, without silent duplicates, and with limits."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._counts: dict[int, int] = {}  # number of nodes in each complete node, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes a node. Refuses deep nesting, and aliases that expand to too much or to themselves."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth == NESTING_MAX:
            raise yaml.composer.ComposerError(None, None, f"it nests deeper than {NESTING_MAX} levels", mark)
        before, is_alias = self._count, self.check_event(yaml.AliasEvent)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._counts:
            raise yaml.composer.ComposerError(None, None, "an alias stands within what it stands for", mark)
        self._count += self._counts[id(node)] if is_alias else 1
        if self._count > NODES_MAX:
            raise yaml.composer.ComposerError(None, None, f"it holds more than {NODES_MAX} values", mark)
        self._counts[id(node)] = self._count - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Builds a mapping. Refuses duplicate keys, of which the first would be silently dropped."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key has to be a word; {{ ... }} of a template has to be rendered first"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_KubernetesLoader.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_KubernetesLoader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfF"))


def read_document(text: str) -> Mapping[str, Any]:
    """Returns the one object in *text*. Raises InvalidSpecError, with the line if the YAML is invalid."""
    try:
        documents = [one for one in yaml.load_all(text, _KubernetesLoader) if one is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "the file"
        raise _error(f"it is not YAML: {error.problem}", "correct the text there", path=where) from error
    except yaml.YAMLError as error:
        raise _error("it holds characters that YAML does not allow", "save it as UTF-8 text") from error
    if len(documents) != 1:
        found = "it is empty" if not documents else f"it holds {len(documents)} documents"
        raise _error(found, "write one MirrorFlow in it")
    document = documents[0]
    if not isinstance(document, dict):
        raise _error("it holds no object", "begin with apiVersion, kind, metadata, spec")
    return document


def _error(message: str, action: str, *, path: str = "the file") -> InvalidSpecError:
    return InvalidSpecError([FieldError(path=path, message=message, action=action)])
