"""Tokens for MSK's IAM access control: a presigned URL, signed here with the credentials of the pod's AWS identity.

MSK accepts them by OAUTHBEARER at the same port as Java's mechanism AWS_MSK_IAM, so that files of both kinds are served by it.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.cloud_logins import AWS_IGNORED_OPTIONS, PROFILES_REFUSED
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_kafka.security.aws_credentials import CachedAwsCredentials, credential_source
from mirrorflow_kafka.security.aws_signature import MSK_TOKEN_S, presigned_msk_url
from mirrorflow_kafka.security.identity_requests import RequestLimits
from mirrorflow_kafka.security.jwt_claims import to_base64url
from mirrorflow_kafka.security.oauth import Token

# Hosts of MSK's provisioned and serverless clusters.
_MSK_HOST = re.compile(
    r"[.]kafka(?:-serverless)?[.]([a-z]{2}(?:-[a-z]+)+-\d+)[.]amazonaws[.]com(?:[.]cn)?(?=[:,]|$)"
)
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsIamToken:
    """Signs a token for MSK in `region`."""

    region: str
    credentials: CachedAwsCredentials
    now: Callable[[], float] = time.time

    async def fetch(self) -> Token:
        """Returns a token that is valid for 15 minutes, or until the credentials expire. Raises TokenError."""
        credentials = await self.credentials.load()
        now_s = int(self.now())
        url = presigned_msk_url(credentials, region=self.region, signed_s=now_s)
        expires_at = float(now_s + MSK_TOKEN_S)
        if credentials.expires_at is not None:
            expires_at = min(expires_at, credentials.expires_at)
        return Token(text=to_base64url(url.encode()), begins_at=now_s, expires_at=expires_at)

    @property
    def refusal_hint(self) -> str:
        """What may be missing if the broker refuses a token."""
        return f"the identity's policy must allow kafka-cluster:Connect on the cluster, which must be in {self.region}"


def aws_iam_token(
    properties: Mapping[str, str],
    options: Mapping[str, str],
    environment: Mapping[str, str],
    limits: RequestLimits,
) -> tuple[AwsIamToken, tuple[str, ...]]:
    """Returns the token source for the options of aws-msk-iam-auth, and warnings. Raises SettingError."""
    if options.get("awsProfileName"):
        raise RefusedSettingError(key=f"{JAAS} (option awsProfileName)", why=PROFILES_REFUSED)
    warnings = tuple(
        f"{JAAS}: the option {name} has no effect" for name in sorted(AWS_IGNORED_OPTIONS & options.keys())
    )
    region = msk_region(properties, options, environment)
    source = credential_source(environment, options, region=region, limits=limits)
    return AwsIamToken(region=region, credentials=CachedAwsCredentials(source)), warnings


def msk_region(
    properties: Mapping[str, str], options: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """Returns the region of the cluster: the option, or that in a broker's name, or the environment's.

    Raises InvalidSettingError if none is known.
    """
    match = _MSK_HOST.search(properties.get("bootstrap.servers", ""))
    region = options.get("awsRegion") or (match[1] if match else "")
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    if not _REGION.fullmatch(region):
        raise InvalidSettingError(
            key=f"{JAAS} (option awsRegion)",
            problem="the AWS region of the cluster is not known" if not region else "it is not an AWS region",
            action="set authentication.region, the option awsRegion, or AWS_REGION",
        )
    return region
