"""How a bean begins and ends: its function is called, what it made is entered, and the stack closes it at the stop.

When each of them is due is decided in ``boot.beans``; how an object without a context manager is closed, in
``boot.closing``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from rocketbox.boot.closing import closing_call, is_left_alone, is_lock
from rocketbox.boot.definitions import BeanDefinition, Source, Style
from rocketbox.boot.dependencies import hint_name
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["EnteredBeans", "checked_bean"]

_log = logging.getLogger(__name__)


class EnteredBeans:
    """The objects that are beans of one run. Each is closed once, however many beans it is."""

    def __init__(self) -> None:
        self._entered: dict[int, object] = {}  # with the objects: an id that is free again may be that of another

    def note(self, value: Any) -> None:
        """Take an object that somebody else closes: whoever handed it in, or the context manager it came from."""
        self._entered[id(value)] = value

    async def enter(self, bean: BeanDefinition, value: Any, stack: AsyncExitStack) -> None:
        """See that what its function has made is closed at the stop."""
        if id(value) in self._entered:
            return
        self.note(value)
        kind = type(value)
        if not bean.mark.close:
            _log.debug("bean %s says close=False: nothing is closed at the stop", bean.label)
        elif is_left_alone(value):
            _log.debug("bean %s is a %s: it is neither entered nor closed", bean.label, hint_name(kind))
        elif hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
            await stack.enter_async_context(value)
        elif (close := closing_call(value)) is not None:  # a connection's __exit__ may end a transaction, and no more
            stack.push_async_callback(close)
        elif hasattr(kind, "__enter__") and hasattr(kind, "__exit__") and not is_lock(value):
            stack.enter_context(value)
        elif bean.source is Source.USER or bean.origin:  # of ours it is known
            _log.debug("bean %s: nothing of %s is closed at the stop", bean.label, hint_name(kind))

    async def call(
        self,
        bean: BeanDefinition,
        arguments: list[Any],
        keywords: dict[str, Any],
        stack: AsyncExitStack,
        is_cut_short: Callable[[], bool],
    ) -> Any:
        """The bean of a function that awaits or yields; what stands behind its ``yield`` runs when the stack closes.

        ``is_cut_short`` says then whether that is cancelled because its time is up.
        """
        assert bean.target is not None
        made: Any
        if bean.style is Style.ASYNC:
            made = bean.target(*arguments, **keywords)
            if inspect.isawaitable(made):  # what a decorator around it returns may be the bean already
                made = await made
            await self.enter(bean, checked_bean(bean, made), stack)
        else:
            manager = _manager_of(bean, *arguments, **keywords)
            made = manager.__enter__() if not _is_async(manager) else await manager.__aenter__()
            stack.push_async_exit(_orderly_exit(manager, is_cut_short))
        self.note(checked_bean(bean, made))  # another bean may be the same object
        return made


def checked_bean(bean: BeanDefinition, made: Any) -> Any:
    """What a bean function has returned, unless that can be no bean."""
    if made is not None and not inspect.iscoroutine(made):
        return made
    what, fix = (
        "None",
        "return one, or give the bean a condition, such as @bean(on_property(...)), and return it always",
    )
    if made is not None:
        what, fix = "a coroutine that nobody awaits", f"write async def {bean.name}(...), and await it there"
        made.close()
    name = hint_name(bean.provides)
    raise ConfigurationError(
        Finding(f"bean {bean.label} returned {what}, and says that it provides a {name}", bean.where, fix)
    )


def _manager_of(bean: BeanDefinition, *args: Any, **kwargs: Any) -> Any:
    """The context manager of a bean that yields; a decorated function may return its bare generator."""
    assert bean.target is not None
    if bean.style is Style.ASYNC_GENERATOR:
        return asynccontextmanager(bean.target)(*args, **kwargs)
    if bean.style is Style.GENERATOR:
        return contextmanager(bean.target)(*args, **kwargs)
    made = bean.target(*args, **kwargs)
    if inspect.isasyncgen(made):
        return asynccontextmanager(lambda: made)()
    return contextmanager(lambda: made)() if inspect.isgenerator(made) else made


def _is_async(manager: Any) -> bool:
    return isinstance(manager, AbstractAsyncContextManager)


def _orderly_exit(manager: Any, is_cut_short: Callable[[], bool]) -> Callable[..., Awaitable[bool]]:
    """What leaves it so that what stands behind its ``yield`` runs when the time of the stop is up, ``finally`` or not.

    All else comes to the yield: a cancellation that a scope inside of it has called for must come by that scope, and
    what another raised when it was closed ends the tasks of a bean that would run on.
    """

    async def leave(kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        told = (None, None, None) if is_cut_short() else (kind, error, trace)
        swallowed = await manager.__aexit__(*told) if _is_async(manager) else manager.__exit__(*told)
        return bool(swallowed) and told[1] is not None

    return leave
