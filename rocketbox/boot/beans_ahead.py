"""Beans that are needed before the start, such as the kinds of listeners: made while the application is planned."""

from __future__ import annotations

from typing import Any

from rocketbox.boot.bean_providers import BeanProviders
from rocketbox.boot.definitions import BeanDefinition, Style
from rocketbox.boot.dependencies import Dependency, hint_name
from rocketbox.boot.failures import failure_findings
from rocketbox.boot.planning import Plan
from rocketbox.errors import Finding

__all__ = ["beans_ahead"]


def beans_ahead(kind: Any, plan: Plan, providers: BeanProviders) -> tuple[list[Any], list[Finding]]:
    """The beans of a type that are needed before the start, made now, and what keeps others from that.

    They may need settings and what was handed in, and other plain functions that need no more.
    """
    made: list[Any] = []
    findings: list[Finding] = []
    for bean in plan.candidates(Dependency(kind, every=True)):
        late = _starts_late(bean, plan, providers)
        if late is None:
            try:
                made.append(_made(bean, plan, providers))
            except Exception as error:
                findings += failure_findings(f"bean {bean.label} failed", bean.where, error)
            continue
        what = "starts" if late is bean else f"needs {late.label}, which starts"
        findings.append(
            Finding(
                f"bean {bean.label} is a {hint_name(kind)}, which is needed before the start, and it {what} later",
                bean.where,
                "write it as a plain function of settings, and take the other beans where they are used",
            )
        )
    return made, findings


def _starts_late(
    bean: BeanDefinition, plan: Plan, providers: BeanProviders, path: tuple[BeanDefinition, ...] = ()
) -> BeanDefinition | None:
    """The bean itself, or one that it needs, which can be made only at the start; None when there is none."""
    if providers.is_there(bean):
        return None
    if bean.style is not Style.PLAIN or bean in path:
        return bean
    needed = [each for argument in plan.arguments[bean] for each in argument.beans]
    return next((late for each in needed if (late := _starts_late(each, plan, providers, (*path, bean)))), None)


def _made(bean: BeanDefinition, plan: Plan, providers: BeanProviders) -> Any:
    if bean in providers:
        for needed in (each for argument in plan.arguments[bean] for each in argument.beans):
            _made(needed, plan, providers)
        return providers.filled(bean)()
    if bean.style is Style.INSTANCE:  # others go in a circle, which is told already, and nothing has a provider
        return bean.value
    assert bean.target is not None
    given: dict[str, Any] = {}
    for argument in plan.arguments[bean]:
        if not argument.use_default:
            values = [_made(each, plan, providers) for each in argument.beans]
            given[argument.parameter.name] = values if argument.every else values[0] if values else argument.constant
    return bean.target(**given)
