"""Actions that run once per `runId`: seeding, verification, restart. A changed id is the only trigger."""

from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.connectors import Resources
from mirrorflow_operator.api.model import ApiModel, RunId


class Executors(ApiModel):
    """Spark executors."""

    max: int = Field(4, ge=1, le=1_000, description="At most so many.")
    resources: Resources = Field(default_factory=Resources, description="Of each.")


class Seed(ApiModel):
    """Fill the target in bulk, then hand over to the connector."""

    run_id: RunId = Field("", description="Change it to seed; empty: never.")
    executors: Executors = Field(default_factory=Executors, description="Spark executors.")


class Verify(ApiModel):
    """Compare both sides."""

    run_id: RunId = Field("", description="Change it to verify now; empty: by schedule alone.")
    schedule: Annotated[str, Field(max_length=100)] = Field(
        "", description="Cron expression of five fields; empty: none."
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = Field(
        "UTC", description="Of the schedule, as the time zone database names it."
    )
    sample: Annotated[str, Field(max_length=10, pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$")] = Field(
        "1.0", description="The part of all windows that is compared, 0 to 1."
    )


class Restart(ApiModel):
    """Restart the connectors."""

    run_id: RunId = Field("", description="Change it to restart; empty: never.")
