"""The chart's policy on MirrorPairs.

An author who names a Secret must be allowed to get it. An author who writes a hook must be allowed to get all Secrets.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.integration.kubernetes.chart.conftest import HOOK_ACCOUNT, TEAM

HOOK = {"hook": {"command": ["/bin/lead"]}}
NAMES_SECRET = "spec names the Secret {}, which pairs-author may not get"
HAS_HOOK = (
    "spec has a hook, which runs with the Secrets of the flows, and pairs-author may not get all Secrets"
)
OTHER_ACCOUNT = "administrator"


@pytest.fixture(scope="module")
def author(installed: ApiServer, administrator: Kubectl) -> Kubectl:
    """A user who may write MirrorPairs and read one Secret, `own-probe`."""
    administrator("create", "role", "pairs", "--verb=*", "--resource=mirrorpairs.mirrorflow.io")
    administrator(
        "create", "role", "probe-reader", "--verb=get", "--resource=secrets", "--resource-name=own-probe"
    )
    for role in ("pairs", "probe-reader"):
        administrator("create", "rolebinding", role, f"--role={role}", "--user=pairs-author")
    user = installed.user("pairs-author").within(TEAM)
    wait_until("the rights are known", lambda: "yes" in user("auth", "can-i", "get", "secret/own-probe"))
    wait_until("the policy is enforced", lambda: not _is_accepted(user, _pair(endpoint=HOOK)))
    return user


def _pair(*, probe: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    east = {"flow": "east-to-west"} | ({} if probe is None else {"probe": probe})
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorPair",
        "metadata": {"name": "east-west"},
        "spec": {
            "members": {"east": east, "west": {"flow": "west-to-east"}},
            "fence": {"method": "None"},
            **spec,
        },
    }


def _job_hook(account: str) -> dict[str, Any]:
    return {"hook": {"job": {"image": "example/gateway:1", "serviceAccountName": account}}}


@pytest.fixture
def hook_author(author: Kubectl, administrator: Kubectl) -> Iterator[Kubectl]:
    """The author, who may get all Secrets meanwhile."""
    administrator("create", "role", "secrets-reader", "--verb=get", "--resource=secrets")
    administrator("create", "rolebinding", "secrets-reader", "--role=secrets-reader", "--user=pairs-author")
    wait_until("the right is known", lambda: _is_accepted(author, _pair(endpoint=HOOK)))
    yield author
    administrator("delete", "rolebinding,role", "secrets-reader")
    wait_until("the right is gone", lambda: not _is_accepted(author, _pair(endpoint=HOOK)))


def _plain(secret: str) -> dict[str, Any]:
    return {
        "type": "Plain",
        "username": {"value": "probe"},
        "password": {"secretName": secret, "key": "password"},
    }


def _is_accepted(user: Kubectl, pair: dict[str, Any]) -> bool:
    try:
        user.apply(pair, "--dry-run=server")
    except KubectlError:
        return False
    return True


def test_a_pair_without_secrets_and_hooks_needs_no_permission_on_secrets(author: Kubectl):
    assert _is_accepted(author, _pair())


@pytest.mark.parametrize(
    "spec",
    [{"endpoint": HOOK}, {"fence": {"method": "Hook", **HOOK}}],
    ids=["endpoint", "fence"],
)
def test_a_hook_needs_permission_on_all_secrets(
    author: Kubectl, administrator: Kubectl, spec: dict[str, Any]
):
    with pytest.raises(KubectlError, match=HAS_HOOK):
        author.apply(_pair(**spec), "--dry-run=server")

    assert _is_accepted(administrator, _pair(**spec))


@pytest.mark.parametrize("field", ["endpoint", "fence"])
def test_the_account_of_a_hook_needs_permission_on_its_tokens(
    hook_author: Kubectl, administrator: Kubectl, field: str
):
    """The Job runs what its author writes, with a token of that account."""
    hook = _job_hook(HOOK_ACCOUNT)
    pair = _pair(endpoint=hook) if field == "endpoint" else _pair(fence={"method": "Hook", **hook})
    with pytest.raises(
        KubectlError, match=f"the ServiceAccount {HOOK_ACCOUNT}, and pairs-author may not create"
    ):
        hook_author.apply(pair, "--dry-run=server")

    administrator(
        "create",
        "role",
        "gateway-tokens",
        "--verb=create",
        "--resource=serviceaccounts/token",
        f"--resource-name={HOOK_ACCOUNT}",
    )
    administrator("create", "rolebinding", "gateway-tokens", "--role=gateway-tokens", "--user=pairs-author")
    wait_until("the right is known", lambda: _is_accepted(hook_author, pair))

    administrator("delete", "rolebinding,role", "gateway-tokens")
    wait_until("the right is gone", lambda: not _is_accepted(hook_author, pair))


def test_a_hook_runs_only_as_an_account_that_the_chart_names_for_its_pair(administrator: Kubectl):
    refusal = "switchovers.hooks of the Helm chart does not name for this pair"
    other_pair = _pair(endpoint=_job_hook(HOOK_ACCOUNT))
    other_pair["metadata"]["name"] = "north-south"
    with pytest.raises(KubectlError, match=refusal):
        administrator.apply(_pair(endpoint=_job_hook(OTHER_ACCOUNT)), "--dry-run=server")
    with pytest.raises(KubectlError, match=refusal):
        administrator.apply(other_pair, "--dry-run=server")

    assert _is_accepted(administrator, _pair(endpoint=_job_hook(HOOK_ACCOUNT)))


def test_a_canary_user_may_name_a_secret_that_its_author_may_get(author: Kubectl, administrator: Kubectl):
    with pytest.raises(KubectlError, match=NAMES_SECRET.format("others-probe")):
        author.apply(_pair(probe=_plain("others-probe")), "--dry-run=server")

    assert _is_accepted(author, _pair(probe=_plain("own-probe")))
    assert _is_accepted(administrator, _pair(probe=_plain("others-probe")))


def test_a_reference_inside_a_text_counts_as_naming_the_secret(author: Kubectl):
    custom = {
        "type": "Custom",
        "config": {"sasl.jaas.config": "${dir:/mnt/mirrorflow/secrets/others-probe:jaas}"},
    }

    with pytest.raises(KubectlError, match=NAMES_SECRET.format("others-probe")):
        author.apply(_pair(probe=custom), "--dry-run=server")


def test_a_user_without_permission_on_secrets_may_change_a_limit(author: Kubectl, administrator: Kubectl):
    administrator.apply(_pair(endpoint=HOOK))
    author("patch", "mirrorpair", "east-west", "--type=merge", '--patch={"spec":{"deadlineSeconds":90}}')

    assert 90 == author.get("mirrorpair", "east-west")["spec"]["deadlineSeconds"]
    administrator("delete", "mirrorpair", "east-west")
