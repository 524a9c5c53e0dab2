"""A switchover reports an API server that does not respond, and tries again."""

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_replicator.switchover import api_server_access, endpoint
from mirrorflow_replicator.switchover.api_server_access import ApiServerAccess
from mirrorflow_replicator.switchover.endpoint import endpoint_problem
from mirrorflow_replicator.switchover.pair_settings import EndpointObject
from tests.unit.kafka.certificates import authority


def test_a_silent_api_server_is_reported_at_the_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The limit is that of all requests together: a server may send a byte now and then."""
    monkeypatch.setattr(endpoint, "SWITCH_S", 0.2)
    monkeypatch.setattr(api_server_access, "REQUEST_S", 1.0)
    service = EndpointObject(
        kind="Service", namespace="kafka", name="bootstrap", key="", values={"west": "b"}
    )
    settings: Any = SimpleNamespace(endpoint_object=service, to="west")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text(authority().pem)
    with socket.create_server(("127.0.0.1", 0)) as server:
        access = ApiServerAccess(host="127.0.0.1", port=server.getsockname()[1], credentials=tmp_path)

        problem = asyncio.run(endpoint_problem(settings, access))

    assert "has not responded within 0.2 s" in problem
