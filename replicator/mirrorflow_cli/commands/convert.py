"""`mirrorflow convert`: converts mm2.properties and Strimzi's KafkaMirrorMaker2 into MirrorFlows.

Each flow becomes one document. Documents go to stdout, or into files below `--output`. The Secrets that they
refer to, every setting without a counterpart and warnings go to stderr; a password is never printed. A setting that
would change the copy (a transformation, a custom naming policy) is refused: all such settings are listed and
nothing is written. Exit status: 0 converted, 2 refused or unreadable.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_cli.convert_from_mm2 import java_flows as flows_of_mm2
from mirrorflow_cli.convert_from_strimzi import KIND as STRIMZI
from mirrorflow_cli.convert_from_strimzi import java_flows as flows_of_strimzi
from mirrorflow_cli.convert_to_mirrorflow import document, flow_name
from mirrorflow_cli.errors import EXIT_DONE, FailedError, UsageError
from mirrorflow_cli.flow_arguments import read_text
from mirrorflow_cli.java_flow import ConversionFindings, ConversionLoss, JavaFlow, NeededSecret
from mirrorflow_cli.output import add_json_argument
from mirrorflow_core.errors import SettingError
from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.api.spec import KIND
from mirrorflow_operator.errors import InvalidSpecError

# YAML at any indentation, or JSON.
_IS_MANIFEST = re.compile(
    r"""^(?:[ \t]*(?:- )?|[ \t]*\{.*)["']?(?:apiVersion|kind)["']?[ \t]*:""", re.MULTILINE
)
_DOCUMENTS = re.compile(r"^---.*$", re.MULTILINE)
# A Helm or Jinja expression (Ansible uses Jinja) outside of comments.
_TEMPLATE = re.compile(r"^(?![ \t]*[#!]).*?(?:\{\{[^{}\n]*\}\}|\{%[^{}\n]*%\})", re.MULTILINE)
# `${NAME}` of a shell or of envsubst. Secrets are not read, and a renaming may refer to a group by name.
_VARIABLE = re.compile(
    r"^(?![ \t]*[#!])(?!.*(?:jaas|password|secret|replacement)).*?(\$\{[A-Za-z_]\w*\})",
    re.MULTILINE | re.IGNORECASE,
)
_LINE_WIDTH = 110
FLOWS_SHOWN_MAX = 3  # flows named per setting; six clusters have twelve, and all have the same reason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help='mm2.properties or a Strimzi KafkaMirrorMaker2 ("-" for stdin)',
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write each MirrorFlow to DIR/<name>.yaml")
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints or writes the MirrorFlows. Raises UsageError with every reason for what cannot be converted."""
    findings = ConversionFindings()
    documents: list[dict[str, Any]] = []
    for name in arguments.files:
        documents += converted(
            read_text(name, "an mm2.properties or a KafkaMirrorMaker2"), findings, name=name
        )
    _make_names_unique(documents)
    if arguments.json:
        _print_json(documents, findings)
        return EXIT_DONE
    if arguments.output:
        _write(documents, Path(arguments.output))
    else:
        print("---\n".join(yaml_text(resource) for resource in documents), end="")
    for line in report(findings):
        print(line, file=sys.stderr)
    return EXIT_DONE


def converted(text: str, findings: ConversionFindings, *, name: str = "the file") -> list[dict[str, Any]]:
    """Returns the MirrorFlows of one file's *text*, each valid. Raises UsageError that names the file."""
    try:
        flows = _java_flows(text, findings)
    except (SettingError, InvalidSpecError) as error:
        raise UsageError(f"{name}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    documents = [document(flow, findings) for flow in flows]
    refused = [loss for loss in findings.losses if loss.refused]
    if refused:
        lines = [_sentence(f"{name}: {_setting(loss)}: {loss.why}") for loss in refused]
        raise UsageError(
            "\n".join(
                [*lines, "Nothing was converted, because without these settings the copy would differ."]
            )
        )
    errors = [
        f"{name}: {flow.name}: {error}"
        for flow, resource in zip(flows, documents, strict=True)
        for error in _errors(resource)
    ]
    if errors:
        raise UsageError("\n".join(errors))
    return documents


def _java_flows(text: str, findings: ConversionFindings) -> list[JavaFlow]:
    if statement := _TEMPLATE.search(text):
        line = text.count("\n", 0, statement.start()) + 1
        raise UsageError(
            f"line {line}: it is a template; render it first, for example by helm template, and convert the result."
        )
    if variable := _VARIABLE.search(text):
        line = text.count("\n", 0, variable.start(1)) + 1
        raise UsageError(
            f"line {line}: nothing has replaced {variable[1]}; render the file first, for example by envsubst, and convert the result."
        )
    if not _IS_MANIFEST.search(text):
        return flows_of_mm2(text, findings)
    manifests = resources(text)
    if len(manifests) == 1:
        return flows_of_strimzi(manifests[0], findings)
    return [flow for resource in manifests for flow in _flows_of_one(resource, findings)]


def _flows_of_one(resource: Mapping[str, Any], findings: ConversionFindings) -> list[JavaFlow]:
    """Returns the flows of one of several resources, whose name begins each finding and error."""
    name = str((resource.get("metadata") or {}).get("name"))
    own = ConversionFindings()
    try:
        flows = flows_of_strimzi(resource, own)
    except (SettingError, UsageError) as error:
        raise UsageError(f"{name}: {error}") from error
    for loss in own.losses:
        setting = loss.setting if loss.flow else f"{name}: {loss.setting}"
        findings.add_loss(loss.flow, setting, loss.why, refused=loss.refused)
    for warning in own.warnings:
        findings.add_warning(f"{name}: {warning}")
    findings.secrets.update(own.secrets)
    return flows


def resources(text: str) -> list[Mapping[str, Any]]:
    """Returns each KafkaMirrorMaker2 of a manifest: YAML or JSON, several documents, or a List.

    Raises UsageError if there is none, and InvalidSpecError for invalid YAML.
    """
    # Other documents are not read: a manifest may have parts that only their own tool understands.
    parts = [part for part in _DOCUMENTS.split(textwrap.dedent(text)) if STRIMZI in part]
    manifests = [resource for part in parts for resource in _listed(read_document(part))]
    manifests = [resource for resource in manifests if resource.get("kind") == STRIMZI]
    if not manifests:
        is_mirrorflow = re.search(rf"\bkind\W{{1,4}}{KIND}\b", text)
        raise UsageError(
            f"it contains no {STRIMZI}"
            + (
                "; a MirrorFlow needs no conversion."
                if is_mirrorflow
                else ", and it is not an mm2.properties."
            )
        )
    return manifests


def _listed(document: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the object, or the items of a List such as `kubectl get -o yaml` prints."""
    if isinstance(document, Mapping) and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _listed(item)
    elif isinstance(document, Mapping):
        yield document


def _errors(resource: dict[str, Any]) -> Sequence[object]:
    try:
        parse_flow(resource)
    except InvalidSpecError as error:
        return error.errors
    return ()


def _make_names_unique(documents: list[dict[str, Any]]) -> None:
    """Gives flows from different files with the same aliases different names."""
    seen: dict[str, int] = {}
    for resource in documents:
        name = str(resource["metadata"]["name"])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            resource["metadata"]["name"] = flow_name(f"{name[:36]}-{seen[name]}")


def yaml_text(resource: dict[str, Any]) -> str:
    return str(
        yaml.safe_dump(
            resource, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH, default_flow_style=None
        )
    )


def report(findings: ConversionFindings) -> Iterable[str]:
    """Yields the lines of the report: the Secrets to create, then the settings without a counterpart."""
    if findings.secrets:
        yield "Secrets to create, or files below --secrets (the whole file is the value, without a line end):"
        for secret in sorted(findings.secrets):
            yield f"  {secret.secret}/{secret.key}: {secret.origin}"
    losses = list(_merged_losses(findings.losses))
    if losses:
        yield "Settings without a counterpart:"
        for setting, why in losses:
            yield f"  {_sentence(f'{setting}: {why}')}"
    if findings.warnings:
        yield "Warnings:"
        for warning in findings.warnings:
            yield f"  {warning}"


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _merged_losses(losses: Iterable[ConversionLoss]) -> Iterable[tuple[str, str]]:
    """Yields setting and reason, merging equal losses of several flows into one line that names the flows."""
    flows: dict[tuple[str, str], list[str]] = {}
    for loss in losses:
        flows.setdefault((loss.setting, loss.why), []).append(loss.flow)
    for (setting, why), names in flows.items():
        shown = [name for name in names if name]
        of = ", ".join(shown[:FLOWS_SHOWN_MAX])
        if len(shown) > FLOWS_SHOWN_MAX:
            of += f" and {len(shown) - FLOWS_SHOWN_MAX} more flows"
        yield f"{setting} ({of})" if of else setting, why


def _setting(loss: ConversionLoss) -> str:
    return f"{loss.setting} ({loss.flow})" if loss.flow else loss.setting


def _print_json(documents: list[dict[str, Any]], findings: ConversionFindings) -> None:
    def secret(needed: NeededSecret) -> dict[str, str]:
        return {"secretName": needed.secret, "key": needed.key, "origin": needed.origin}

    result = {
        "flows": documents,
        "secrets": [secret(needed) for needed in sorted(findings.secrets)],
        "unsupported": [
            {"flow": loss.flow, "setting": loss.setting, "why": loss.why} for loss in findings.losses
        ],
        "warnings": findings.warnings,
    }
    print(json.dumps(result, indent=2, ensure_ascii=False))


def _write(documents: list[dict[str, Any]], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for resource in documents:
            path = folder / f"{resource['metadata']['name']}.yaml"
            path.write_text(yaml_text(resource), encoding="utf-8")
            print(path)
    except OSError as error:
        raise FailedError(
            f"{folder} cannot be written: {error.strerror}; choose another --output."
        ) from error
