"""What beans raised while they ran or were closed: noted as the stack closes them, and told to the user with the bean.

What fails at the start is told there (``boot.beans``); the texts of findings are those of ``boot.failures``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from rocketbox.boot.definitions import BeanDefinition, Style
from rocketbox.boot.failures import failure_findings
from rocketbox.errors import Finding
from rocketbox.own_failures import as_failure

__all__ = ["BeanFailures"]


class BeanFailures:
    """The failures of one run's beans."""

    def __init__(self) -> None:
        self._noted: list[tuple[BeanDefinition, Exception, bool]] = []
        """Beans that raised when they were closed, with what; whether nothing but their end was the reason."""

    @contextmanager
    def watched(self, bean: BeanDefinition, stack: AsyncExitStack) -> Iterator[None]:
        """Note, when the stack closes, what the bean that is entered inside raises itself."""
        if bean.style is Style.INSTANCE:
            yield
            return
        before: list[BaseException | None] = [None]

        def around(kind: object, error: BaseException | None, trace: object) -> None:
            if error is None or error is before[0]:
                return
            failure = as_failure(error, exits=True, hosted=True)
            if isinstance(failure, Exception):
                of_another = isinstance(before[0], Exception)  # one that was closed before
                self._noted.append((bean, failure, before[0] is None or of_another))
            if failure is not error:
                raise failure from error

        def within(kind: object, error: BaseException | None, trace: object) -> None:
            before[0] = error

        stack.push(around)
        yield
        stack.push(within)

    def findings(self, error: BaseException, others: Sequence[tuple[str, str | None, Exception]] = ()) -> list[Finding]:
        """What an error that ended the run is to a user: which bean it came from, and the line that raised it.

        ``others`` are failures of what is no bean: what failed, its place, and the error.
        """
        findings: list[Finding] = []
        told: set[int] = set()
        for what, where, failure in others:
            for leaf in _leaves(failure):
                told.add(id(leaf))
                findings += failure_findings(what, where, leaf)
        for bean, failure, closing in self._noted:  # one that is closed later takes the place of the errors before
            what = f"bean {bean.label} failed {'when it was closed' if closing else 'while it ran'}"
            for leaf in _leaves(failure):
                if id(leaf) not in told:
                    told.add(id(leaf))
                    findings += failure_findings(what, bean.where, leaf)
        for leaf in _leaves(error):
            if id(leaf) not in told:
                findings += failure_findings("it failed while it ran", None, leaf)
        return findings


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group, which a bean with tasks of its own raises in place of one."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
