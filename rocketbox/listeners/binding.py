"""Binding by type: which parameter of a handler is the payload, a message, a header or a bean.

:func:`read_signature` looks at a function without calling or building anything and finds everything that is wrong
with it. The one rule, by the parameter's type; what is not surely understood is a finding, never a guess:

    type                                              | is given
    Annotated[T, Header("name")]                      | the message's property of that name
    MessageExt, Message                               | the message
    anything with a Qualifier                         | the bean of that name
    str, bytes, dict, Mapping                         | the payload, never a bean
    a pydantic model, dataclass, TypedDict            | the payload; where there is a bean of that type as well: the
                                                      | bean if another parameter surely is the payload, or a finding
    a class of which there is a bean                  | the bean
    any other                                         | its default, or a finding
    list[...] of what can be a payload or a message   | those of a whole batch

How values come out of messages is told by ``arguments``, which types a payload, a header and what is returned may have
by ``payload_types``, ``header_types`` and ``return_types``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rocketbox.client import Producer
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import (
    UnresolvedHintError,
    hint_of,
    hint_of_method,
    is_variadic,
    makes_coroutine,
    name_of,
    parameters_of,
    place_of,
    plain_function,
)
from rocketbox.listeners.header_types import header_in, misplaced_header, unreadable_header
from rocketbox.listeners.payload_types import (
    PAYLOAD_TYPES,
    is_payload,
    is_plain,
    item_of_list,
    may_be_none,
    mentions_payload,
    plain_hint,
    type_name,
    without_none,
)
from rocketbox.listeners.return_types import return_type
from rocketbox.listeners.signature import HandlerSignature, Parameter, Role
from rocketbox.message import Message, MessageExt
from rocketbox.template import BlockingRocketMQTemplate, MessageConverter, PayloadError, RocketMQTemplate

__all__ = ["Beans", "read_signature", "unreadable_payload"]

NEEDS_A_LOOP = (RocketMQTemplate, Producer)  # coroutines only: useless in a worker thread
NEEDS_A_THREAD = (BlockingRocketMQTemplate,)  # it waits: that would stop the loop


@dataclass(frozen=True)
class Beans:
    """What listeners know of the container of beans; hints come with their ``Annotated`` extras."""

    has: Callable[[Any], bool]
    provider: Callable[[Any], Callable[[], Any]]
    """What gives the bean of a hint when it is called; raises when there is none."""
    left_out: Callable[[Any, str, str], Finding | None] = lambda hint, who, where: None
    """What is wrong with somebody at a place asking for a hint, if the container knows why there is no such bean."""
    ambiguous: Callable[[Any, str, str], Finding | None] = lambda hint, who, where: None
    """The same if there are several such beans."""
    by_name: Callable[[Any], bool] = lambda hint: False
    """Whether a hint asks for a bean by its name, so that it can be nothing else."""
    misplaced_name: Callable[[str, Any, Any], tuple[str, str] | None] = lambda parameter, hint, default: None
    """What is wrong with such a name that stands where none is looked for (parameter, hint, default), and what to
    write."""

    def owner_left_out(self, owner: Any, where: str) -> Finding | None:
        """Why there is no bean to call a method on, where a condition has left it out: a listener of it is off.

        ``owner`` is what the method asks for; None for a function.
        """
        return None if owner is None or self.has(owner) else self.left_out(owner, "it", where)


def read_signature(
    function: Callable[..., Any], *, beans: Beans, converter: MessageConverter | None, owner: Any = None
) -> HandlerSignature:
    """What each parameter is given, and every mistake in it. A function of ``owner`` is a method of its bean.

    ``converter`` says which types are payloads. None: one of the user's that is not there yet, so that any class may
    be a payload; :func:`unreadable_payload` tells when it is there.

    Raises ConfigurationError with all that is wrong with the signature; builds and calls nothing.
    """
    return _SignatureReader(function, beans, converter, owner).read()


def unreadable_payload(signature: HandlerSignature, converter: MessageConverter) -> Finding | None:
    """What is wrong with the payload of a handler for this converter, if anything is."""
    for parameter in signature.parameters:
        if parameter.role is Role.PAYLOAD:
            try:
                converter.check(parameter.type_)
            except PayloadError as error:
                what = f"listener {signature.name} takes a payload in parameter {parameter.name!r} that cannot be read"
                taken = f"take what {type(converter).__qualname__} can read, or return a bean of that type"
                return Finding(f"{what}: {error}", signature.where, taken)
    return None


class _SignatureReader:
    """Reads one signature and collects what is wrong with it."""

    def __init__(
        self, function: Callable[..., Any], beans: Beans, converter: MessageConverter | None, owner: Any
    ) -> None:
        self.function = function
        self.owner = owner
        self.beans = beans
        self.converter = converter
        self.where = place_of(function)
        self.name = name_of(function)
        self.is_async = makes_coroutine(function)
        self.undecided: dict[str, Any] = {}  # parameters that may be the payload and may be a bean, with their hints
        self.findings: list[Finding] = []

    def read(self) -> HandlerSignature:
        plain = plain_function(self.function)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            self.wrong("is a generator", "return the value instead of yielding it")
        if self.owner is not None and not self.beans.has(self.owner):
            self.wrong(f"is a method of {type_name(self.owner)}, and there is no such bean", "mark the class @bean")
        raws = parameters_of(self.function)[0 if self.owner is None else 1 :]  # without self
        parameters = [parameter for raw in raws if (parameter := self.parameter(raw))]
        if not self.findings:
            parameters = self.decide(parameters)
        if not self.findings:
            self.check_together(parameters)
        if self.findings:
            raise ConfigurationError(self.findings)
        is_batch = any(parameter.batch for parameter in parameters)
        returns = return_type(self.function, self.owner)
        return HandlerSignature(
            self.function, self.owner, self.where, self.is_async, is_batch, tuple(parameters), returns
        )

    def wrong(self, what: str, fix: str) -> None:
        self.findings.append(Finding(f"listener {self.name} {what}", self.where, fix))

    def parameter(self, raw: inspect.Parameter) -> Parameter | None:
        """The parameter and its role, or None with a finding."""
        has_default = raw.default is not inspect.Parameter.empty
        found = partial(
            Parameter, raw.name, keyword_only=raw.kind is inspect.Parameter.KEYWORD_ONLY, default=raw.default
        )
        try:
            hint = hint_of_method(hint_of(self.function, raw), self.function, self.owner)
        except UnresolvedHintError as error:
            if has_default:
                return found(Role.DEFAULT)
            self.wrong(
                f"has a parameter whose type is not known at run time: {error}",
                f"import or define {error.annotation} at the top of the module, not under TYPE_CHECKING",
            )
            return None
        if self.misplaces_header(raw, hint):
            return None
        if (wrong := self.beans.misplaced_name(raw.name, hint, raw.default)) is not None:
            self.wrong(f"{wrong[0]} in parameter {raw.name!r}", wrong[1])
            return None
        if hint is inspect.Parameter.empty:
            if has_default:
                return found(Role.DEFAULT)
            self.wrong(
                f"has a parameter {raw.name!r} without a type, and parameters are bound by their type",
                f"annotate it: {PAYLOAD_TYPES}; MessageExt; Annotated[str, Header(...)]; or the type of a bean",
            )
            return None
        if header := header_in(hint):
            return found(Role.HEADER, hint, header=header) if self.check_header(raw.name, hint, header) else None
        plain = plain_hint(hint)  # what else is said of it is for others
        required = without_none(plain)
        item = item_of_list(plain_hint(required))
        taken = plain_hint(required if item is None else item)
        optional = has_default or required is not plain
        if taken in (MessageExt, Message):
            if not self.check_batch(raw.name, taken, item is not None and optional):
                return None
            return found(Role.MESSAGE_EXT if taken is MessageExt else Role.MESSAGE, batch=item is not None)
        if self.beans.by_name(hint):
            return self.bean(found, hint, raw.name)
        payload = hint if item is None else item
        if is_payload(payload):
            if not self.check_batch(raw.name, payload, item is not None and optional):
                return None
            if not is_plain(payload) and self.may_be_bean(hint):
                self.undecided[raw.name] = hint
            elif not self.check_payload(raw.name, payload):
                return None
            return found(Role.PAYLOAD, payload, batch=item is not None)
        if (bean := self.bean_in(hint)) is not None:
            return found(Role.BEAN, bean) if self.check_sync(raw.name, bean) else None
        if optional and not mentions_payload(hint):  # a bean that may be absent, and is
            return found(Role.DEFAULT) if has_default else replace(found(Role.DEFAULT), default=None)
        return found(Role.PAYLOAD, payload, batch=item is not None) if self.check_payload(raw.name, payload) else None

    def bean_in(self, hint: Any) -> Any:
        """The type under which the container has a bean for the hint; None when it has none."""
        return next((candidate for candidate in (hint, without_none(hint)) if self.beans.has(candidate)), None)

    def may_be_bean(self, hint: Any) -> bool:
        """Whether the container has such a bean, or several, or would have one if a condition held."""
        if self.bean_in(hint) is not None:
            return True
        plain = without_none(hint)
        return any(why(plain, "it", self.where) is not None for why in (self.beans.left_out, self.beans.ambiguous))

    def bean(self, found: Callable[..., Parameter], hint: Any, name: str) -> Parameter | None:
        """The parameter as a bean, or what it has where there is none; None with a finding."""
        if (bean := self.bean_in(hint)) is not None:
            return found(Role.BEAN, bean) if self.check_sync(name, bean) else None
        absent: Parameter = found(Role.DEFAULT)
        if absent.default is not inspect.Parameter.empty:
            return absent
        if may_be_none(hint):
            return replace(absent, default=None)
        if not self.tell_why_absent(name, hint):
            self.wrong(
                f"asks for a bean in parameter {name!r} by its name, {type_name(hint)}, and there is none",
                "return it from a function of that name marked @bean, or take the Qualifier away",
            )
        return None

    def tell_why_absent(self, name: str, hint: Any) -> bool:
        """Whether the container knows why there is not one such bean; then that is found."""
        who = f"parameter {name} of listener {self.name}"
        known = self.beans.left_out(hint, who, self.where) or self.beans.ambiguous(hint, who, self.where)
        if known is not None:
            self.findings.append(known)
        return known is not None

    def decide(self, parameters: list[Parameter]) -> list[Parameter]:
        """Take what may be the payload and may be a bean for the bean, if another parameter surely is the payload."""
        if not self.undecided:
            return parameters
        sure = any(each.role is Role.PAYLOAD and each.name not in self.undecided for each in parameters)
        decided: list[Parameter] = []
        for each in parameters:
            hint = self.undecided.get(each.name)
            if hint is None:
                decided.append(each)
            elif sure:
                as_bean = partial(Parameter, each.name, keyword_only=each.keyword_only, default=each.default)
                if (bean := self.bean(as_bean, hint, each.name)) is not None:
                    decided.append(bean)
            else:
                kind = type_name(without_none(hint))
                self.wrong(
                    f"takes {kind} in parameter {each.name!r}, which a body can be read as, and there is such a bean",
                    f'write Annotated[{kind}, Qualifier("name")] for the bean of that name; where it is to be the '
                    "payload, let no bean have its type",
                )
        return decided

    def check_sync(self, name: str, bean: Any) -> bool:
        if self.is_async and isinstance(bean, type) and issubclass(bean, NEEDS_A_THREAD):
            self.wrong(
                f"is an async def and takes {bean.__name__} in parameter {name!r}, which would stop the event loop",
                f"take RocketMQTemplate and await {name}.send(...); or declare the handler with def",
            )
            return False
        if not self.is_async and isinstance(bean, type) and issubclass(bean, NEEDS_A_LOOP):
            self.wrong(
                f"is a plain def and takes {bean.__name__} in parameter {name!r}, which has coroutines only",
                f"declare it with async def and await {name}.send(...); or return the payload under @send_to"
                + (f"; or take BlockingRocketMQTemplate and call {name}.send(...)" if bean is RocketMQTemplate else ""),
            )
            return False
        return True

    def check_header(self, name: str, hint: Any, header: str) -> bool:
        problem = unreadable_header(hint)
        if problem is not None:
            self.wrong(
                f"takes header {header!r} in parameter {name!r} as a type that no text can become: {problem}",
                "take str, int, float, bool, datetime, timedelta or an Enum",
            )
        return problem is None

    def misplaces_header(self, raw: inspect.Parameter, hint: Any) -> bool:
        wrong = misplaced_header(raw, hint, "str" if hint is raw.empty else type_name(without_none(hint)))
        if wrong is not None:
            self.wrong(f"has a Header {wrong[0]} in parameter {raw.name!r}", wrong[1])
        return wrong is not None

    def check_batch(self, name: str, item: Any, may_be_absent: bool) -> bool:
        if may_be_absent:
            single = type_name(item)
            self.wrong(
                f"takes a batch in parameter {name!r} that may be absent, and a batch always holds messages",
                f"write {name}: list[{single}], without a default; or for one message at a time {name}: {single}",
            )
        return not may_be_absent

    def check_payload(self, name: str, payload: Any) -> bool:
        if payload is list:
            self.wrong(
                f"takes a list without saying of what in parameter {name!r}", "write list[Departure], list[dict]"
            )
            return False
        if not is_payload(payload):
            if self.tell_why_absent(name, payload):
                return False
            if self.converter is None:
                return True
            self.wrong(
                f"has a parameter {name!r} of type {type_name(payload)}, which is neither a payload nor a bean",
                f"return {type_name(payload)} from a function marked @bean; a payload is {PAYLOAD_TYPES}",
            )
            return False
        try:
            if self.converter is not None:
                self.converter.check(payload)
        except PayloadError as error:
            self.wrong(f"takes a payload in parameter {name!r} that cannot be read: {error}", f"take {PAYLOAD_TYPES}")
            return False
        return True

    def check_together(self, parameters: Sequence[Parameter]) -> None:
        payloads = [parameter for parameter in parameters if parameter.role is Role.PAYLOAD]
        messages = [parameter for parameter in parameters if parameter.role in (Role.MESSAGE_EXT, Role.MESSAGE)]
        if len(payloads) > 1:
            named = " and ".join(f"{payload.name}: {type_name(payload.type_)}" for payload in payloads)
            fix = "leave one of them; what is to be injected must be a bean: return it from a function marked @bean"
            if any(payload.default is not inspect.Parameter.empty for payload in payloads):
                fix += "; what is to keep its default has no type"
            self.wrong(f"has more than one payload: {named}", fix)
        elif not payloads and not messages:
            given = [f"{each.name} is given by a bean" for each in parameters if each.role is Role.BEAN]
            self.wrong(
                f"takes neither a payload nor a message{': ' if given else ''}{', '.join(given)}",
                f"give it a parameter of {PAYLOAD_TYPES}, or MessageExt"
                + (
                    "; *args and **kwargs are given nothing: a decorator needs functools.wraps"
                    if is_variadic(self.function)
                    else ""
                ),
            )
        takers = [*payloads, *messages]
        if any(taker.batch for taker in takers):
            for taker in takers:
                if not taker.batch:
                    single = "MessageExt" if taker.role is not Role.PAYLOAD else type_name(taker.type_)
                    self.wrong(
                        f"takes a batch, and one {single} in parameter {taker.name!r}", f"take list[{single}] there too"
                    )
            for header in (parameter for parameter in parameters if parameter.role is Role.HEADER):
                self.wrong(
                    f"takes a batch, and one header {header.header!r} in parameter {header.name!r}",
                    "take list[MessageExt] and read each message's properties",
                )
