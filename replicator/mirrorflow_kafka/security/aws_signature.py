"""Signs requests to AWS with Signature Version 4: the token of MSK's IAM access control, and requests to STS.

Pure: the time is an argument. Sources: "Create a signed AWS API request" in the IAM user guide, and AWS's
aws-msk-iam-sasl-signer-python, whose bytes the tests compare.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
# MSK accepts no longer lifetime.
MSK_TOKEN_S = 900
# Not signed; CloudTrail and AWS's support show it.
_USER_AGENT = "mirrorflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """Credentials of an AWS identity; `expires_at` in seconds since 1970, None if they do not expire."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: float | None = None


def presigned_msk_url(credentials: AwsCredentials, *, region: str, signed_s: float) -> str:
    """Returns the URL that is MSK's token before it is encoded, signed at *signed_s*, in seconds since 1970."""
    timestamp = _timestamp(signed_s)
    scope = f"{timestamp[:8]}/{region}/kafka-cluster/aws4_request"
    host = f"kafka.{region}.amazonaws.com"
    query = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(MSK_TOKEN_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        query["X-Amz-Security-Token"] = credentials.session_token
    pairs = [f"{_encode(name)}={_encode(value)}" for name, value in query.items()]
    request = f"GET\n/\n{'&'.join(sorted(pairs))}\nhost:{host}\n\nhost\n{_digest(b'')}"
    signature = _signature(credentials.secret_access_key, scope, timestamp, request)
    return f"https://{host}/?{'&'.join(pairs)}&X-Amz-Signature={signature}&User-Agent={_USER_AGENT}"


def signed_headers(
    credentials: AwsCredentials,
    *,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    region: str,
    signed_s: float,
) -> dict[str, str]:
    """Returns *headers* and those that authorize a POST of *body* to STS at *url*."""
    timestamp = _timestamp(signed_s)
    scope = f"{timestamp[:8]}/{region}/sts/aws4_request"
    parts = urlsplit(url)
    own = {"X-Amz-Date": timestamp}
    if credentials.session_token:
        own["X-Amz-Security-Token"] = credentials.session_token
    signed = {name.lower(): value for name, value in {**headers, **own, "Host": parts.netloc}.items()}
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    names = ";".join(sorted(signed))
    request = f"POST\n{parts.path or '/'}\n\n{lines}\n{names}\n{_digest(body)}"
    signature = _signature(credentials.secret_access_key, scope, timestamp, request)
    credential = f"{credentials.access_key_id}/{scope}"
    authorization = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return {**headers, **own, "Authorization": authorization}


def _signature(secret: str, scope: str, timestamp: str, request: str) -> str:
    """Returns the signature of a canonical *request*, by a key derived for each part of *scope*."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{_digest(request.encode())}"
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _timestamp(signed_s: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(signed_s))


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
