"""Which middlewares of OpenTelemetry a client of the application has.

Those of a ``MessageSpans`` bean of the user's; else, where ``rocketbox.otel.enabled`` is true, or nothing is said and
the process has set a tracer provider (by its own code, or by ``opentelemetry-instrument``), those of the global one.
They stand around the middlewares of users, so that what these do is in a span.
"""

from __future__ import annotations

from rocketbox.autoconfigure.service import Service
from rocketbox.client import ClientOptions, ConsumeMiddleware, SendMiddleware
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.otel import MessageSpans, is_set_up

__all__ = ["spans_in_use", "spans_of_client"]

KEY = "rocketbox.otel.enabled"


def spans_in_use(enabled: bool | None, given: MessageSpans | None, service: Service) -> MessageSpans | None:
    """The spans of the application, if it has any; ``given`` is the user's bean.

    Raises ConfigurationError where they are asked for and OpenTelemetry is not installed.
    """
    if enabled is False:
        return None
    if given is not None:
        return given
    if enabled is None and not is_set_up():
        return None
    try:
        return MessageSpans()
    except ConfigurationError as error:
        findings = [Finding(f"{KEY} is true: {each.what}", service.where(KEY), each.fix) for each in error.findings]
        raise ConfigurationError(findings) from error


def spans_of_client(
    spans: MessageSpans | None, options: ClientOptions, service: Service
) -> tuple[tuple[SendMiddleware, ...], tuple[ConsumeMiddleware, ...]]:
    """The middlewares of the client with these options."""
    if spans is None:
        return (), ()
    own = spans.of_client(namespace=options.namespace or options.namespace_v2, mask=service.mask)
    return (own.send,), (own.consume,)
