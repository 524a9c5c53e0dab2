"""YAML read as Kubernetes' JSON would have it, one object to a file.

Texts that look like dates stay texts, `Off` is a word and not a boolean, and a key written twice is an error.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from mirrorflow_operator.errors import FieldError, InvalidSpecError

_BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")


class _KubernetesLoader(yaml.SafeLoader):
    """SafeLoader with JSON's idea of scalars, and without silent duplicates."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Refuse a key that is written twice: the first would be dropped without a word."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
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
    """The one object in *text*. Raises InvalidSpecError, which says where the text breaks off."""
    try:
        documents = [one for one in yaml.load_all(text, _KubernetesLoader) if one is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "the file"
        raise _slip(f"it is not YAML: {error.problem}", "correct the text there", path=where) from error
    except yaml.YAMLError as error:
        raise _slip("it holds characters that YAML does not allow", "save it as UTF-8 text") from error
    if len(documents) != 1:
        found = "it is empty" if not documents else f"it holds {len(documents)} documents"
        raise _slip(found, "write one MirrorFlow in it")
    document = documents[0]
    if not isinstance(document, dict):
        raise _slip("it holds no object", "begin with apiVersion, kind, metadata, spec")
    return document


def _slip(message: str, action: str, *, path: str = "the file") -> InvalidSpecError:
    return InvalidSpecError([FieldError(path=path, message=message, action=action)])
