"""Decides what a release contains. Pure, but for `requirements`, which reads the installed packages."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution

from packaging.requirements import Requirement


def version_of(pyproject: str) -> str:
    """Returns the version in the text of pyproject.toml."""
    match = re.search(r'^version = "(.+)"', pyproject, re.MULTILINE)
    if match is None:
        raise ValueError("pyproject.toml has no version")
    return match[1]


def obstacles(version: str, *, changelog: str, dockerfile: str, tag: str = "") -> list[str]:
    """Returns why *version* may not be released, each with what to do; *tag* is "" in a dry run."""
    heading = re.findall(r"^## (.*)", changelog, re.MULTILINE)[0]
    reasons = []
    if tag not in {"", f"v{version}"}:
        reasons.append(
            f"the tag {tag} is not the version of pyproject.toml, {version}; set one of them right."
        )
    if heading.split()[0] != version or "unreleased" in heading:
        reasons.append(f"CHANGELOG.md begins with {heading!r}; write the version and the date.")
    if "@sha256:" not in "".join(re.findall(r"^ARG PYTHON=(.*)", dockerfile, re.MULTILINE)):
        reasons.append("the base image of the Dockerfile has no digest; run `make pin`.")
    return reasons


def notes(changelog: str) -> str:
    """Returns the section of the newest version, without its heading."""
    section = re.split(r"^## .*\n", changelog, flags=re.MULTILINE)[1]
    return section.strip() + "\n"


def with_registry(text: str, registry: str) -> str:
    """Returns *text* of the chart with the images of *registry*; unchanged where it is "".

    README.md names the registry of the chart itself.
    """
    if not registry:
        return text
    text = re.sub(r"\bmirrorflow/(operator|replicator|seed)\b", rf"{registry}/\1", text)
    return text.replace("oci://REGISTRY/", f"oci://{registry}/")


def installation(rendered: str, namespace: str) -> str:
    """Returns install.yaml: the rendered chart, after the namespace that it is rendered for."""
    head = f"""\
# MirrorFlow's chart with its default values: kubectl apply --server-side -f install.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
    return f"{head}{rendered if rendered.startswith('---') else f'---{chr(10)}{rendered}'}"


def formula(template: str, *, url: str, source: bytes) -> str:
    """Returns the Homebrew formula for the source archive at *url*."""
    return template.replace("@URL@", url).replace("@SHA256@", hashlib.sha256(source).hexdigest())


def checksums(files: Mapping[str, bytes]) -> str:
    """Returns what `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())
    )


def requirements(package: str, extras: Sequence[str]) -> list[str]:
    """Returns `name==version` of *package* with *extras* and of all that they need, as they are installed."""
    lines: dict[str, str] = {}
    waiting = [Requirement(f"{package}[{','.join(extras)}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name.lower().replace("_", "-"), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        installed = distribution(requirement.name)
        lines[key[0]] = f"{key[0]}=={installed.version}"
        waiting.extend(_needed(installed.requires or (), requirement.extras or {""}))
    return [line for _, line in sorted(lines.items())]


def _needed(requires: Sequence[str], extras: set[str]) -> Iterator[Requirement]:
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            yield requirement
