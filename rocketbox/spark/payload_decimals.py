"""Decimals that would keep a task for hours: what Spark's parser must not be given, as conditions on a body.

Java makes all digits of a decimal before Spark looks whether they fit: those of ``1e600000000``, which has eleven
letters, fill the memory, and a text of some million digits takes hours. Nothing interrupts that. How long the texts of
decimals may be is said by ``payload_forms``, which sees them as they are; here is what it does not see: a number, of
which it has what a double holds, and the first ones of a field that comes several times.

Source: Apache Spark 4.3.0 ``JacksonParser`` (which converts a field each time it comes), ``Decimal.set``
(``setScale``); Java 17 ``BigDecimal`` (which takes all digits of Unicode); RFC 8259.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

__all__ = ["may_take_hours"]

FAR = r"[0-9][eE][+-]?0*[1-9][0-9]{3}"
"""Of an exponent that no number needs: a double has three digits of it."""
ESCAPED, TEXT = r"\\.", r'"[^"]*"'
# As a decimal, perhaps with escaped letters, that has an exponent or is long. Nothing in it is looked at twice.
LIKE_A_DECIMAL = r'"(?=[\p{Nd}.,eE+\\-])(?=[^"]{1000}|[^"eE\\]*[eE\\])(?:[\p{Nd}.,eE+-]|\\u[0-9a-fA-F]{4}){5,}+"'


def may_take_hours(body: Column) -> Column:
    """Whether the body has a number, not a text, with such an exponent, or may have a text that is as bad.

    A text is not seen where the same name comes again. One look tells of nearly all bodies that they have neither.
    """
    numbers = f.regexp_replace(f.regexp_replace(body, ESCAPED, ""), TEXT, "")
    is_hidden = body.rlike(LIKE_A_DECIMAL) & f.try_parse_json(body).isNull()
    return body.rlike(f"{FAR}|{LIKE_A_DECIMAL}") & (numbers.rlike(FAR) | is_hidden)
