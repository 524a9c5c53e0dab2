"""`mirrorflow validate`: reports what the operator or a connector would refuse.

It makes no network connections and needs no secrets.
"""

import argparse
from typing import Any

from mirrorflow_cli.commands.plan import find_conflicts
from mirrorflow_cli.errors import EXIT_DONE, EXIT_USAGE, UsageError
from mirrorflow_cli.flow_arguments import (
    flows_from,
    layout_from,
    source_settings,
    valid_plans,
    warnings_of,
    worker_settings,
)
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_argument, print_json
from mirrorflow_operator.plan.properties import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=False, several=True)
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints each valid flow and its warnings, or all errors, one per line, with exit status 2."""
    try:
        valid = _valid(arguments)
    except UsageError as error:
        if not arguments.json:
            raise
        print_json({"valid": False, "problems": str(error).splitlines()})
        return EXIT_USAGE
    if arguments.json:
        print_json({"valid": True, "flows": valid})
        return EXIT_DONE
    for flow in valid:
        print(f"{flow['name']}: valid, {flow['source']} -> {flow['target']}")
        for warning in flow["warnings"]:
            print(f"  warning: {warning}")
    return EXIT_DONE


def _valid(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns name, aliases and warnings of each flow. Raises UsageError with all errors, one per line."""
    flows = flows_from(arguments)
    plans = {planned.flow: planned for planned in valid_plans(flows, layout_from(arguments))}
    if len(flows) > 1:
        settings = {name: source_settings(planned)[0] for name, planned in plans.items()}
        conflicts, _ = find_conflicts(flows, settings, offline=True)
        if conflicts:
            raise UsageError("\n".join(conflict.sentence for conflict in conflicts))
    return [
        {
            "name": flow.metadata.name,
            "source": flow.spec.source.alias,
            "target": flow.spec.target.alias,
            "warnings": _warnings(plans[flow.metadata.name]),
        }
        for flow in flows
    ]


def _warnings(planned: Plan) -> list[str]:
    warnings = (
        warning for connector in planned.connectors for warning in warnings_of(worker_settings(connector))
    )
    return list(dict.fromkeys(warnings))
