"""The providers of a plan's beans: what makes each, or holds what its start left, and gives it to whoever asks.

The only module that knows dependency-injector: every bean is a provider in a ``DynamicContainer``, and whoever is
given the bean has it from there. A plain bean function becomes a ``ThreadSafeSingleton``; one that is async, yields or
is a context manager a singleton of what its start left. dependency-injector's own async resources stay out, because
they turn whoever needs them into futures.

What takes a bean's place before the start is planned as an object that is there already: it is neither built, started
nor closed. What overrides a provider later counts for whoever asks it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from dependency_injector import containers, providers

from rocketbox.boot.conditions import Verdict
from rocketbox.boot.definitions import BeanDefinition, Style
from rocketbox.boot.entering import checked_bean
from rocketbox.boot.planning import Argument, Plan
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, NotStartedError

__all__ = ["BeanProvider", "BeanProviders", "DynamicContainer", "constant", "every_one", "overriding"]

BeanProvider = providers.Provider[Any]


class DynamicContainer(containers.DynamicContainer):
    """dependency-injector's container with a provider for each bean, by its name.

    Once it is planned, no provider takes the place of another: whoever was given the first one would not see it.
    """

    is_planned = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_planned and isinstance(value, providers.Provider):
            raise ClientStateError(
                f"app.container.{name} = ... takes the place of no bean: write app.container.{name}.override(...) for "
                "one that is there, and a @bean function for a new one"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(sorted(self.__dict__.get("providers", {}))) or "none"
        raise AttributeError(f"the application has no bean {name!r}; there are: {names}")


class BeanProviders:
    """The providers of one plan: by its beans, and in ``container`` by their names.

    ``in_place`` are those that override a bean from the beginning.
    """

    def __init__(self, plan: Plan, in_place: Mapping[BeanDefinition, tuple[BeanProvider, ...]]) -> None:
        self.container = DynamicContainer()
        self._plan = plan
        self._providers = {bean: _provider_of(bean, in_place.get(bean, ())) for bean in plan.order}

        def is_handed_in(bean: BeanDefinition) -> bool:
            return bean.style is Style.INSTANCE and bean not in in_place

        for bean in sorted(self._providers, key=is_handed_in):
            # Objects that were handed in, such as models of settings, leave the plain name to a bean that has it too.
            self.container.set_provider(self._key(bean), self._providers[bean])
        self.container.is_planned = True

    def __contains__(self, bean: BeanDefinition) -> bool:
        return bean in self._providers

    def __getitem__(self, bean: BeanDefinition) -> BeanProvider:
        return self._providers[bean]

    def __iter__(self) -> Iterator[BeanDefinition]:
        return iter(self._providers)

    def is_there(self, bean: BeanDefinition) -> bool:
        """Whether nobody has to make it: it was handed in, or something overrides it."""
        return bean.style is Style.INSTANCE or (bean in self._providers and bool(overriding(self._providers[bean])))

    def add_left_out(self) -> None:
        """Have a provider as well for each bean that is not taken: it may be overridden for another plan that takes it.

        Asked, it says why there is none.
        """
        self.container.is_planned = False
        for bean, verdict in self._plan.left_out:
            provider = self._providers[bean] = providers.ThreadSafeSingleton(partial(_not_taken, bean.label, verdict))
            self.container.set_provider(self._key(bean), provider)
        self.container.is_planned = True

    def filled(self, bean: BeanDefinition) -> BeanProvider:
        """The provider of a plain bean, which builds it from now on when it is asked for the first time."""
        provider: Any = self._providers[bean]
        if bean.style is Style.PLAIN:
            assert bean.target is not None
            provider.set_provides(partial(_build, bean, *self._injections(bean)))
        return cast("BeanProvider", provider)

    def hold(self, bean: BeanDefinition, made: Any) -> None:
        """Give what the start of a bean left to whoever asks from now on."""
        provider: Any = self._providers[bean]
        provider.set_provides(lambda: made)

    def arguments(self, bean: BeanDefinition) -> tuple[list[Any], dict[str, Any]]:
        """What its function is called with."""
        positional, named = self._injections(bean)
        return [each() for each in positional], {name: each() for name, each in named.items()}

    def _injections(self, bean: BeanDefinition) -> tuple[list[Callable[[], Any]], dict[str, Callable[[], Any]]]:
        positional: list[Callable[[], Any]] = []
        named: dict[str, Callable[[], Any]] = {}
        for argument in self._plan.arguments[bean]:
            if argument.use_default:
                continue
            injection = self._injection(argument)
            if argument.parameter.positional_only:
                positional.append(injection)
            else:
                named[argument.parameter.name] = injection
        return positional, named

    def _injection(self, argument: Argument) -> Callable[[], Any]:
        if argument.every:
            return every_one([self._providers[bean] for bean in argument.beans])
        if argument.beans:
            return self._providers[argument.beans[0]]
        return providers.Object(argument.constant)

    def _key(self, bean: BeanDefinition) -> str:
        name = "".join(letter if letter.isalnum() else "_" for letter in bean.name)
        name = f"{name}_{bean.cluster_name}" if bean.cluster_name and bean.cluster_name != bean.name else name
        while hasattr(self.container, name):  # a user's bean has the name, or the container itself
            name += "_"
        return name


def _provider_of(bean: BeanDefinition, in_place: Sequence[BeanProvider]) -> BeanProvider:
    """One that is filled when the bean is started, if it is not there already."""
    if bean.style is Style.INSTANCE and not in_place:
        if bean.value is not None:
            return providers.Object(bean.value)
        return providers.ThreadSafeSingleton(partial(_not_started, bean.label))  # of a model without known settings
    provider = providers.ThreadSafeSingleton(partial(_was_replaced if in_place else _not_started, bean.label))
    provider.disable_async_mode()  # an awaitable bean is a bean, no future of one
    for each in in_place:
        provider.override(each)
    return provider


def overriding(provider: Any) -> tuple[BeanProvider, ...]:  # Any: its own type says that there is always one
    """The providers that override this one now, in dependency-injector's way."""
    return tuple(provider.overridden)


def constant(value: Any) -> BeanProvider:
    """A provider of an object that is there already."""
    return providers.Object(value)


def every_one(found: Sequence[Callable[[], Any]]) -> Callable[[], list[Any]]:
    """What gives a list of what each of them gives."""
    return partial(_all_of, found)


def _build(
    bean: BeanDefinition, positional: Sequence[Callable[[], Any]], named: Mapping[str, Callable[[], Any]]
) -> Any:
    """Call a plain bean function; what it is given is fetched here, for a provider that has a future among its own
    arguments becomes one itself."""
    assert bean.target is not None
    return checked_bean(
        bean, bean.target(*(each() for each in positional), **{name: each() for name, each in named.items()})
    )


def _all_of(found: Sequence[Callable[[], Any]]) -> list[Any]:
    return [each() for each in found]


def _not_started(label: str) -> Any:
    raise NotStartedError(f"bean {label}")


def _not_taken(label: str, verdict: Verdict) -> Any:
    raise ConfigurationError(Finding(f"bean {label} is not there: {verdict.reason}", None, verdict.fix))


def _was_replaced(label: str) -> Any:
    raise ClientStateError(
        f"bean {label} was overridden when the application started, so that it was not built: its override cannot be "
        "taken back before the next start"
    )
