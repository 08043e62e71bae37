"""Everything about an application that can be known, and be wrong, before it connects to anything.

Scans the modules, loads the settings, plans beans and listeners (``listener_plans``), and puts together all that is
wrong. Starting what was planned is ``running``'s business; the rules themselves are those of ``boot`` and of the kinds
of listeners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rocketbox.autoconfigure.absences import absences, embedded_elsewhere, embedded_settings, idle_middleware
from rocketbox.autoconfigure.asked_profiles import embedded_by_oversight, unknown_profiles
from rocketbox.autoconfigure.hooks import Hook, HookPlans, plan_hooks
from rocketbox.autoconfigure.inventory import Inventory, unreached
from rocketbox.autoconfigure.kinds import Listeners
from rocketbox.autoconfigure.listener_plans import KindPlans, ListenerPlanner, clusters_by_name
from rocketbox.autoconfigure.loading import Launch, find_others, load, settings_models
from rocketbox.autoconfigure.own_beans import own_autoconfigurations
from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.scan import Marked, listeners_in, load_modules, marked_in
from rocketbox.autoconfigure.service import ConverterLookup, LentSecrets, Service, TemplateLookup
from rocketbox.autoconfigure.unawaited import Suspect, forgotten_awaits
from rocketbox.autoconfigure.users import PlannedClients
from rocketbox.background_work import BackgroundWork
from rocketbox.boot.beans import BeanContainer, Bundle
from rocketbox.boot.dependencies import dependency_of, fits, is_bean_type, misplaced_qualifier
from rocketbox.boot.failures import without_secrets
from rocketbox.boot.marks import BEAN, PRIMARY, bean_mark
from rocketbox.boot.masking import mask
from rocketbox.boot.missing_beans import told_together
from rocketbox.boot.overrides import Replacement
from rocketbox.boot.settings import Settings, SettingsError
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import class_of, name_of, place_of
from rocketbox.listeners import Beans
from rocketbox.listeners.registrar import unknown_cluster
from rocketbox.marks import MARKS, marks_of
from rocketbox.template import MessageConverter, RocketMQTemplate
from rocketbox.watchdog import LoopWatchdog

__all__ = ["Assembly", "AssemblyError", "RunParts", "assemble"]


class AssemblyError(ConfigurationError):
    """The application cannot start. ``report`` is the conditions report where it helps; ``secrets`` are not shown."""

    def __init__(self, findings: Sequence[Finding], report: str | None, secrets: frozenset[str]) -> None:
        super().__init__(without_secrets(findings, secrets))
        self.report = report
        self.secrets = secrets


@dataclass(frozen=True)
class RunParts:
    """What a run is made of and beans may ask for, health above all: there before the start, and idle until then."""

    listeners: Listeners
    work: BackgroundWork
    watchdog: LoopWatchdog


@dataclass(repr=False)  # it holds the whole application
class Assembly:
    """What was found out, ready to be started, in ``took`` seconds; ``findings`` is everything that is wrong.

    ``wrong_settings`` are those of them that are about settings. The rest was found out without the wrong ones, and is
    no more than what is wrong whatever they should be. ``off`` is what is switched off, and why, ``inventory`` what the
    scan found.
    """

    service: Service
    settings: Settings
    container: BeanContainer
    rocketmq: RocketMQProperties
    rocketbox: RocketBoxProperties
    clients: PlannedClients
    parts: RunParts
    listeners: list[KindPlans] = field(default_factory=list)
    hooks: HookPlans = field(default_factory=HookPlans)
    off: list[Finding] = field(default_factory=list)
    inventory: Inventory = field(default_factory=Inventory)
    warnings: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    wrong_settings: Sequence[Finding] = ()
    took: float = 0.0

    def describe_clients(self) -> Iterator[str]:
        """A line for each client of clusters that start, where there is something to say of them."""
        if self.rocketmq.off_by is None:
            for name, own in clusters_by_name(self.rocketmq).items():
                if own.name_server is not None and not own.is_off:
                    yield from self.clients.clusters[name].describe(name, own.name_server)

    @property
    def plans(self) -> list[Any]:
        """The plans of all containers of listeners, whatever their kind: each a ``ListenerPlan``, and more."""
        return [plan for each in self.listeners for plan in each.plans]

    def describe_found(self) -> str:
        """What the scan found and where, in a line."""
        return self.inventory.describe(len(self.off))

    def describe_listeners(self) -> Iterator[str]:
        """A line for each listener."""
        for plan in self.plans:
            yield from plan.describe()

    @property
    def beans(self) -> Beans:
        """The container as listeners see it."""
        container = self.container
        return Beans(
            self._may_have, container.provider, container.left_out, container.ambiguous, _asks_by_name,
            misplaced_qualifier,
        )  # fmt: skip

    def _may_have(self, hint: Any) -> bool:
        if self.container.has(hint):
            return True
        return bool(self.wrong_settings) and self.container.left_out(hint, "it") is not None

    def check(self) -> None:
        """Raise AssemblyError with all findings, if there are any."""
        if self.findings:
            report = self.container.report.render() if self.container.planned.puzzling else None
            raise AssemblyError(self.findings, report, self.settings.secrets)


def _asks_by_name(hint: Any) -> bool:
    return dependency_of(hint).qualifier is not None


def assemble(
    name: str,
    home: str,
    launch: Launch,
    *,
    scan: Sequence[str] | None,
    config: Path | str | None,
    exclude: Sequence[str],
    hooks: Sequence[Hook],
    instances: Iterable[Any],
    replacements: Sequence[Replacement] = (),
    with_any_settings: bool = False,
) -> Assembly:
    """Find out all about the application ``name``, which the module ``home`` makes.

    ``instances`` are objects that anybody may ask for by their type, ``replacements`` what was put in the place of
    beans before. ``with_any_settings``: what the user's models want may be said at the start, and may lack now. Raises
    ConfigurationError when not even the modules or settings can be read; all other findings stand in the result.
    """
    clock = launch.machine.clock
    since = clock.monotonic()
    modules = load_modules(home, scan)
    others = find_others(modules, home, launch, config, exclude)
    wrong_settings: Sequence[Finding] = ()
    models = settings_models(modules, others)
    try:
        settings, lacking = _settings(
            models, _replaced_models(models, launch, replacements), modules, home, launch, config
        )
    except SettingsError as error:
        if error.settings is None and not with_any_settings:
            raise
        settings = error.settings or load(settings_models(()), modules, home, launch, config)
        lacking, wrong_settings = (), error.findings
    settings.names_shown.update((name, "rocketbox", "rocketmq"))
    properties: RocketMQProperties = settings.get("rocketmq")
    own: RocketBoxProperties = settings.get("rocketbox")
    of_all_clients = own.client.values()
    cached_bytes = CachedBytes(of_all_clients["max_cached_bytes"])
    service = Service(
        name,
        launch.machine,
        lambda key: _where(settings, key),
        cached_bytes,
        LentSecrets(settings.lent, settings.is_public),
        of_all_clients,
        lambda text: mask(text, settings.secrets),
    )
    clients = PlannedClients()
    prefixes = {cluster: cluster_prefix(cluster) for cluster in properties.clusters}
    container = BeanContainer(settings, clock, prefix="rocketmq", clusters=prefixes)

    def template_of(cluster: str) -> RocketMQTemplate:
        if cluster not in properties.clusters:
            raise ConfigurationError(unknown_cluster("a send", cluster, properties.clusters, "cluster= of the send"))
        return container.get(RocketMQTemplate, cluster)

    templates = TemplateLookup(template_of)
    parts = RunParts(Listeners(), BackgroundWork(f"{name} in the background", clock), LoopWatchdog(clock))
    converters = ConverterLookup(lambda: container.provider(MessageConverter))
    for instance in (*instances, service, templates, converters, clients, parts.listeners, parts.work, parts.watchdog):
        container.add_instance(instance)
    container.add_models({**dict.fromkeys(models), **settings.models}, models)
    marked_beans = list(marked_in(modules, BEAN))
    users = [marked.target for marked in marked_beans if marked.owner is None]
    for target in users:
        container.add(target)
    ours = own_autoconfigurations()
    for each in (*ours, *others):
        bundle, origin = Bundle(each.names, each.where, loaded=not each.excluded), "" if each in ours else each.origin
        if each.beans or each in others:  # our module of settings cannot be left out
            container.add_bundle(bundle)
        for target in each.beans:
            if target not in users:  # who scans the package of another takes what is there for their own
                container.add(target, automatic=True, origin=origin, bundle=bundle)
    container.exclude(exclude, f"RocketBox({name!r}, exclude=...)")
    container.exclude(own.autoconfigure.exclude, service.where("rocketbox.autoconfigure.exclude"))
    assembly = Assembly(service, settings, container, properties, own, clients, parts)
    assembly.warnings += settings.warnings
    assembly.wrong_settings = wrong_settings
    assembly.findings += wrong_settings
    assembly.findings += unknown_profiles(
        settings, [*container.conditions(), *(hook.when for hook in hooks if hook.when is not None)]
    )
    assembly.findings += embedded_settings(properties, own, service)
    assembly.findings += [each.problem for each in (*ours, *others) if each.problem is not None]
    assembly.findings += [_bean_in_class(marked) for marked in marked_beans if marked.owner is not None]
    assembly.findings += _primary_alone(modules)
    container.replace(replacements)
    for hint, value in launch.beans.items():
        container.override(hint, value)
    of_beans = container.plan()
    if lacking and container.unmade():
        raise SettingsError(lacking, None)
    listeners = list(listeners_in(modules, container.classes(), MARKS))
    assembly.inventory = Inventory.of(modules, listeners, hooks, len(users))
    planner = ListenerPlanner(settings, properties, service, container, assembly.beans, clients, listeners)
    if not wrong_settings:  # else what is missing may be there when the settings are right
        assembly.findings += of_beans
    planner.plan()
    assembly.listeners = planner.planned
    if not wrong_settings:
        planner.check_needs()
    assembly.findings += planner.findings
    assembly.warnings += planner.warnings
    assembly.warnings += unreached(name, home, modules, scan, len(listeners), {each.module for each in others})
    assembly.findings += forgotten_awaits(_suspects(listeners, hooks, users))
    assembly.off += planner.off
    if not wrong_settings:
        assembly.findings += embedded_elsewhere(properties, container, service)
        assembly.hooks = plan_hooks(hooks, container, planner.resolve_text)
        assembly.findings += assembly.hooks.findings
        assembly.off += assembly.hooks.off
        if not assembly.findings:
            assembly.warnings += absences(properties, container, listens=bool(assembly.plans))
        if properties.off_by is None:
            assembly.warnings += embedded_by_oversight(settings)
            assembly.warnings += idle_middleware(container)
    assembly.findings = told_together(assembly.findings)
    assembly.took = clock.monotonic() - since
    return assembly


def _settings(
    models: Mapping[str, type],
    replaced: Sequence[str],
    modules: Sequence[ModuleType],
    home: str,
    launch: Launch,
    config: Path | str | None,
) -> tuple[Settings, Sequence[Finding]]:
    """The settings, if need be without the models of ``replaced`` prefixes, and what is wrong with these then."""
    try:
        return load(models, modules, home, launch, config), ()
    except SettingsError as error:
        if not replaced:
            raise
        return load(models, modules, home, launch, config, replaced), error.findings


def _replaced_models(models: Mapping[str, Any], launch: Launch, replacements: Sequence[Replacement]) -> list[str]:
    """The prefixes of those models of the settings whose places may be taken: then nothing is required of them."""
    asked = [each for each in map(dependency_of, launch.beans) if is_bean_type(each.type_)]
    names = {each.bean.name for each in replacements if each.bean.target is None}
    own = (RocketMQProperties, RocketBoxProperties)  # of which more is made than beans
    return [
        prefix
        for prefix, model in models.items()
        if model not in own
        and (prefix in names or any(fits(model, each.type_) and each.qualifier in (None, prefix) for each in asked))
    ]


def _suspects(listeners: Iterable[Marked], hooks: Iterable[Hook], beans: Iterable[Any]) -> Iterator[Suspect]:
    """The functions of the user's that are called by us, and the methods of classes that are beans."""
    for marked in listeners:
        name = getattr(marked.target, "__qualname__", str(marked.target))
        yield Suspect(f"listener {name}", marked.target, class_of(marked.owner), returns_to_us=True)
    for hook in hooks:
        yield Suspect(hook.label, hook.function, returns_to_us=True)
    for each in beans:
        if not isinstance(each, type):
            yield Suspect(f"bean {getattr(each, '__name__', type(each).__name__)}", each)
            continue
        for member in vars(each).values():
            if callable(member) and not isinstance(member, type) and not marks_of(member):
                yield Suspect(f"{getattr(member, '__qualname__', member)} of a bean", member, each)


def _bean_in_class(marked: Marked) -> Finding:
    return Finding(
        f"{_name_in_class(marked)} is marked @bean, and stands in a class",
        place_of(marked.owner if isinstance(marked.target, property) else marked.target),
        "write it as a function of the module; what it needs are its parameters",
    )


def _name_in_class(marked: Marked) -> str:
    names = [name for name, member in vars(marked.owner).items() if member is marked.target]
    return f"{marked.owner.__qualname__}.{names[0]}" if names else name_of(marked.target)


def _primary_alone(modules: Sequence[ModuleType]) -> Iterator[Finding]:
    for marked in marked_in(modules, PRIMARY):
        if bean_mark(marked.target) is None:
            what = f"{marked.target.__qualname__} is marked @primary, and is no bean"
            yield Finding(what, place_of(marked.target), "write @bean above it")


def _where(settings: Settings, key: str) -> str | None:
    origin = settings.origin(key)
    return None if origin is None else str(origin)
