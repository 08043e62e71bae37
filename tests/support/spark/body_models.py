"""Models of messages' bodies."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime

__all__ = ["PlainTypes"]


class PlainTypes(BaseModel):
    """A field of each type that one column of Spark holds."""

    text: str
    number: int
    real: float
    flag: bool
    raw: bytes
    day: datetime.date
    at: datetime.datetime
    aware: AwareDatetime
    naive: NaiveDatetime
    id: uuid.UUID
    amount: decimal.Decimal
    price: Annotated[decimal.Decimal, Field(max_digits=10, decimal_places=2)]
