"""What requests and replies look like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

MOST_ROWS = 10_000  # in one request
MOST_FEATURES = 100_000

Id = Annotated[StrictStr, Field(min_length=1, max_length=256)] | StrictInt
Label = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr
X = (
    Annotated[list[Any], Field(min_length=1, max_length=MOST_FEATURES)]
    | Annotated[dict[str, Any], Field(min_length=1, max_length=MOST_FEATURES)]
)


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRow(Model):
    """One row: its features as a list of numbers (null: missing) or an object of named fields."""

    id: Id | None = Field(None, description="By which the label comes later; made up where it is missing.")
    x: X = Field(examples=[[0.3, 1.2], {"amount": 3.2, "shop": "a"}])


class PredictRequest(Model):
    """One row (`x`, and `id` where you have one), or several (`rows`)."""

    id: Id | None = None
    x: X | None = Field(None, examples=[[0.3, 1.2], {"amount": 3.2, "shop": "a"}])
    rows: Annotated[list[PredictRow], Field(min_length=1, max_length=MOST_ROWS)] | None = None
    remember: StrictBool = Field(True, description="false: predict only; no label is expected and nothing is written.")

    @model_validator(mode="after")
    def _one_of(self) -> PredictRequest:
        if (self.x is None) == (self.rows is None):
            raise ValueError("expected either x or rows")
        if self.rows is not None and self.id is not None:
            raise ValueError("expected the id of each row in rows")
        return self


class LabelRow(Model):
    """The label of a row that was asked by `id`, or an example with its label (`x`)."""

    id: Id | None = None
    x: X | None = None
    y: Label = Field(examples=["spam"])

    @model_validator(mode="after")
    def _one_of(self) -> LabelRow:
        if self.id is None and self.x is None:
            raise ValueError("expected id or x beside y")
        return self


class LabelsRequest(Model):
    """One label (`id` or `x`, and `y`), or several (`rows`)."""

    id: Id | None = None
    x: X | None = None
    y: Label | None = Field(None, examples=["spam"])
    rows: Annotated[list[LabelRow], Field(min_length=1, max_length=MOST_ROWS)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> LabelsRequest:
        if self.rows is not None:
            if self.id is not None or self.x is not None or self.y is not None:
                raise ValueError("expected either rows or a single label")
        elif self.y is None:
            raise ValueError("expected y: a text, a number, true or false")
        elif self.id is None and self.x is None:
            raise ValueError("expected id or x beside y")
        return self


class ExampleRow(Model):
    """An example with its label."""

    id: Id | None = None
    x: X = Field(examples=[[0.3, 1.2], {"amount": 3.2, "shop": "a"}])
    y: Label = Field(examples=["spam"])


class ObserveRequest(Model):
    """Examples with their labels, oldest first."""

    rows: Annotated[list[ExampleRow], Field(min_length=1, max_length=MOST_ROWS)]


class QuotaSettings(Model):
    """Limits of a tenant; null: none."""

    requests_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = None
    pending: Annotated[int, Field(gt=0, le=10**9)] = 100_000
    rows: Annotated[int, Field(gt=0, le=10**15)] | None = None
    bytes: Annotated[int, Field(gt=0, le=10**15)] | None = None


class TenantRequest(Model):
    """A tenant to make."""

    settings: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr | None] = Field(
        default_factory=dict, description="Settings of the learner that differ from the defaults."
    )
    classes: (
        Annotated[StrictInt, Field(ge=1, le=100_000)]
        | Annotated[list[Label], Field(min_length=1, max_length=100_000)]
        | None
    ) = Field(None, description="How many labels there can be, or the labels themselves; null: any number.")
    columns: Annotated[dict[str, Any], Field(min_length=1)] | None = Field(
        None, description="A row, by which the columns of all rows are read; by default the first one."
    )
    kinds: dict[str, StrictStr] | None = Field(None, description="How columns are read where that row does not tell.")
    missing: StrictBool = Field(True, description="Whether features may be null.")
    quotas: QuotaSettings = Field(default_factory=QuotaSettings)


class Prediction(Model):
    """The most probable label so far (null before there is one) and the probability of each."""

    id: str | None
    label: Label | None
    probabilities: dict[str, float] = Field(description="By the label, or its JSON where that is no text.")
    unseen: float = Field(description="The probability of a label that was never seen.")
    position: int = Field(description="How many labels had been learned.")


class Predictions(Model):
    predictions: list[Prediction]


class Accepted(Model):
    """A label that is in the log: learned; waiting for its prediction; or known from before."""

    id: str | None
    position: int = Field(description="How many labels had been learned then.")
    status: str = Field(examples=["learned", "waiting", "known"])


class AcceptedRows(Model):
    results: list[Accepted]
    position: int


class ErrorContent(Model):
    message: str
    field: str | None = None


class ErrorReply(Model):
    """What went wrong, in one sentence, and the field that it is about."""

    error: ErrorContent
