"""Signatures of AWS's own code, for comparison with those of MirrorFlow.

`aws_signatures.json` is the output of aws-msk-iam-sasl-signer-python 1.0.2 and botocore 1.44.8 at a frozen time. The
two packages are not installed for the tests, because botocore needs python-dateutil below 3, and the official
Kubernetes client needs 3 or later. To record the signatures again, in a separate environment: `python -m
tests.unit.kafka.aws_signatures > tests/unit/kafka/aws_signatures.json`.
"""

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

NOW = 1_764_400_000.0
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SESSIONS = ("", "session/token+with=signs", "IQoJb3JpZ2luX2VjE~-_.é%")
REGIONS = ("us-east-1", "eu-central-2", "us-gov-west-1")
STS_URL, STS_REGION = "https://sts.eu-west-1.amazonaws.com/", "eu-west-1"
STS_BODY = b"Action=AssumeRole&RoleArn=x"
STS_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}
FILE = Path(__file__).with_suffix(".json")


def recorded() -> dict[str, Any]:
    """Returns `tokens` (region, session, token) and `headers` (session, the headers of a request to STS)."""
    recording: dict[str, Any] = json.loads(FILE.read_text())
    return recording


def record() -> dict[str, Any]:
    """Returns the same structure from AWS's code."""
    import botocore.auth
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    frozen = dt.datetime.fromtimestamp(NOW, dt.UTC).replace(tzinfo=None)
    botocore.auth.get_current_datetime = lambda **_: frozen
    Signer.__get_user_agent__ = lambda: "mirrorflow"  # this header is not signed
    tokens, headers = [], []
    for session in SESSIONS:
        credentials = Credentials(KEY, SECRET, session or None)
        for region in REGIONS:
            token, _ = Signer.__construct_auth_token(region, credentials)
            tokens.append({"region": region, "session": session, "token": token})
        if session.isascii():
            request = AWSRequest(method="POST", url=STS_URL, data=STS_BODY, headers=dict(STS_HEADERS))
            botocore.auth.SigV4Auth(credentials, "sts", STS_REGION).add_auth(request)
            headers.append({"session": session, "headers": dict(request.headers.items())})
    return {"tokens": tokens, "headers": headers}


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=2)
    sys.stdout.write("\n")
