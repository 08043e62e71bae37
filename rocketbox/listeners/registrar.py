"""From marks and settings to containers: which groups there are, with which functions and options.

Precedence of an option: ``rocketmq.consumer.listeners.<group>.x``, then the decorator, then ``rocketmq.consumer.x``,
then the default. Everything that is wrong is found here, before anything starts. How settings and decorators become
values is the caller's business; starting is the container's.

Source: rocketmq-spring 2.3 ``ListenerContainerConfiguration`` (checks at registration).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocketbox.client.checks import MAX_TOPIC_CHARS, check_group, check_topic
from rocketbox.client.options import mismatches, wrong_names
from rocketbox.declarations import SECONDS
from rocketbox.errors import ConfigurationError, Finding, InvalidGroupError, InvalidMessageError
from rocketbox.hints import name_of, place_of
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.options import FUNCTION_OPTIONS, GROUP_OPTIONS, GroupOptions, OptionLayer
from rocketbox.listeners.plans import ContainerPlan, ListenerFunction
from rocketbox.listeners.return_types import wrong_return
from rocketbox.listeners.signature import HandlerSignature
from rocketbox.listeners.tag_routing import overlap
from rocketbox.marks import send_to
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageModel
from rocketbox.protocol.tags import is_valid_name
from rocketbox.template import MessageConverter
from rocketbox.template.headers import split_destination

__all__ = ["Candidate", "ClusterSettings", "plan_containers", "unknown_cluster"]


@dataclass(frozen=True)
class Candidate:
    """A marked function: what its decorator said, and the ``send_to`` marks beside it; a method of ``owner``'s bean."""

    function: Callable[..., Any]
    declared: OptionLayer
    replies: tuple[send_to, ...] = ()
    owner: Any = None

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def cluster(self) -> str | None:
        cluster: str | None = self.declared.values.get("cluster")
        return cluster

    @property
    def group(self) -> str | None:
        """What the decorator says; None: the settings may."""
        group: str | None = self.declared.values.get("consumer_group")
        return group


@dataclass(frozen=True)
class ClusterSettings:
    """What the settings say about the listeners of one cluster; ``prefix`` is ``rocketmq`` or a cluster's own.

    ``off_by`` is the key that switches all of them off, if one does.
    ``switches`` are rocketmq-spring's ``<group>.<topic>: false``, with the place of each as ``<group>.<topic>``.
    ``option_meant`` gives the option, of any kind of listeners, that a name which is no topic is much like.
    """

    prefix: str = "rocketmq"
    off_by: str | None = None
    defaults: OptionLayer = field(default_factory=OptionLayer.empty)
    groups: Mapping[str, OptionLayer] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    where_switched: Callable[[str], str] = lambda name: "nowhere"
    option_meant: Callable[[str], str | None] = lambda name: None


def plan_containers(
    candidates: Sequence[Candidate],
    clusters: Mapping[str | None, ClusterSettings],
    *,
    beans: Beans,
    converter: MessageConverter | None,
) -> tuple[list[ContainerPlan], list[Finding], list[Finding]]:
    """The containers to start, in the order in which their groups were first seen; what is wrong; and what is off.

    ``converter`` None: one of the user's that is not there yet, so that it cannot be asked what it can read.
    """
    registrar = _Registrar(clusters, beans, converter)
    for candidate in candidates:
        registrar.add(candidate)
    return registrar.plans(), registrar.findings, registrar.off


def unknown_cluster(who: str, cluster: str | None, known: Iterable[str | None], where: str) -> Finding:
    """The finding that ``who`` names a cluster that the settings do not have."""
    near = difflib.get_close_matches(cluster or "", [name for name in known if name], 1)
    fix = f"did you mean {near[0]!r}?" if near else f"set rocketmq.clusters.{cluster}.name-server"
    return Finding(f"{who} names cluster {cluster!r}, and there is none of that name", where, fix)


@dataclass
class _Member:
    """A candidate whose group and topic are known."""

    candidate: Candidate
    signature: HandlerSignature
    topic: str
    options: dict[str, Any]


class _Registrar:
    def __init__(
        self, clusters: Mapping[str | None, ClusterSettings], beans: Beans, converter: MessageConverter | None
    ) -> None:
        self.clusters = clusters
        self.beans = beans
        self.converter = converter
        self.findings: list[Finding] = []
        self.off: list[Finding] = []
        self.groups: dict[tuple[str | None, str], list[_Member]] = {}
        self.topics_seen: dict[tuple[str | None, str], set[str]] = {}

    def wrong(self, what: str, where: str, fix: str) -> None:
        self.findings.append(Finding(what, where, fix))

    def add(self, candidate: Candidate) -> None:
        """Find the candidate's group and topic, and put it there unless it is switched off."""
        here = place_of(candidate.function)
        declared = candidate.declared
        cluster = declared.values.get("cluster")
        settings = self.clusters.get(cluster)
        if settings is None:
            self.findings.append(unknown_cluster(f"listener {candidate.name}", cluster, self.clusters, here))
            return
        group = declared.values.get("consumer_group") or settings.defaults.values.get("group")
        if not group:
            self.wrong(
                f"listener {candidate.name} has no consumer group",
                here,
                f"write consumer_group= in its decorator, or set {settings.prefix}.consumer.group",
            )
            return
        group_layer = settings.groups.get(group, OptionLayer.empty())
        layers = (group_layer, declared, settings.defaults)
        topic = next((found for layer in layers if (found := layer.values.get("topic"))), None)
        if not topic:
            self.wrong(
                f"listener {candidate.name} of group {group!r} has no topic",
                here,
                f"write topic= in its decorator, or set {settings.prefix}.consumer.topic",
            )
            return
        self.check_names(candidate.name, group, topic, here)
        self.topics_seen.setdefault((cluster, group), set()).add(topic)
        if not self.is_enabled(candidate, settings, group, topic, group_layer):
            return
        try:
            signature = read_signature(
                candidate.function, beans=self.beans, converter=self.converter, owner=candidate.owner
            )
        except ConfigurationError as error:
            self.findings.extend(error.findings)
            return
        options = {}
        for name in FUNCTION_OPTIONS:
            for layer in layers:
                if layer.values.get(name) is not None:
                    options[name] = layer.values[name]
                    break
            else:
                options[name] = FUNCTION_OPTIONS[name].default
        self.check_replies(candidate, here)
        if (wrong := wrong_return(signature, sends_on=bool(candidate.replies))) is not None:
            self.findings.append(wrong)
        self.groups.setdefault((cluster, group), []).append(_Member(candidate, signature, topic, options))

    def is_enabled(
        self, candidate: Candidate, settings: ClusterSettings, group: str, topic: str, group_layer: OptionLayer
    ) -> bool:
        switched = settings.switches.get(group, {}).get(topic)
        path = f"{settings.prefix}.consumer.listeners.{group}"
        here = place_of(candidate.function)
        off: list[tuple[str, str | None]] = []
        if settings.off_by is not None:
            off.append((settings.off_by, None))
        if switched is False:
            off.append((f"{path}.{topic}", settings.where_switched(f"{group}.{topic}")))
        if group_layer.values.get("enabled") is False:
            off.append((f"{path}.enabled", group_layer.where("enabled")))
        elif "enabled" not in group_layer.values and candidate.declared.values.get("enabled") is False:
            off.append(("its decorator", here))
        if (left_out := self.beans.owner_left_out(candidate.owner, here)) is not None:
            off.append((left_out.what, here))
        if off:
            who, where = off[0]
            self.off.append(Finding(f"listener {candidate.name} of group {group} is off: {who}", where))
        return not off

    def check_names(self, name: str, group: str, topic: str, here: str) -> None:
        try:
            check_group(group, "consumer")
        except InvalidGroupError as error:
            self.wrong(f"listener {name}: {error}", here, "choose another consumer group")
        if len(topic) > MAX_TOPIC_CHARS or not is_valid_name(topic):
            self.wrong(
                f"listener {name}: topic {topic!r} is no name of a topic",
                here,
                f"take at most {MAX_TOPIC_CHARS} letters, digits and % | _ -",
            )

    def check_replies(self, candidate: Candidate, here: str) -> None:
        for reply in candidate.replies:
            if reply.cluster is not None and reply.cluster not in self.clusters:
                who = f"send_to of listener {candidate.name}"
                self.findings.append(unknown_cluster(who, reply.cluster, self.clusters, here))
            try:
                topic, _ = split_destination(reply.destination)
                check_topic(topic)
            except InvalidMessageError as error:
                fix = "write 'topic' or 'topic:tag', with a topic that one may send to"
                self.wrong(f"send_to of listener {candidate.name}: {error}", here, fix)

    def plans(self) -> list[ContainerPlan]:
        plans = []
        for (cluster, group), members in self.groups.items():
            settings = self.clusters[cluster]
            group_layer = settings.groups.get(group, OptionLayer.empty())
            self.check_function_options(settings, group, members, group_layer)
            options, origins = self.group_options(group, members, group_layer, settings.defaults)
            if options.consume_mode is ConsumeMode.ORDERLY and options.delay_level_when_next_consume != 0:
                self.wrong(
                    f"group {group!r} is ORDERLY, where delay_level_when_next_consume has no effect: a queue waits",
                    origins["delay_level_when_next_consume"],
                    "set suspend_current_queue_time instead",
                )
            if options.consume_mode is ConsumeMode.ORDERLY and options.message_model is MessageModel.BROADCASTING:
                self.wrong(
                    f"group {group!r} is ORDERLY and BROADCASTING, which RocketMQ does not offer together",
                    origins.get("message_model") or origins.get("consume_mode") or "the defaults",
                    "choose CLUSTERING, or CONCURRENTLY",
                )
            functions = tuple(self.function(group, member, options) for member in members)
            self.check_topics(group, functions)
            plans.append(
                ContainerPlan(cluster=cluster, group=group, functions=functions, options=options, origins=origins)
            )
        self.check_switches()
        return plans

    def function(self, group: str, member: _Member, options: GroupOptions) -> ListenerFunction:
        size = member.options["consume_message_batch_max_size"]
        signature = member.signature
        if not signature.is_batch and size not in (None, 1):
            self.wrong(
                f"listener {signature.name} of group {group!r} takes one message, and its batch size is {size}",
                signature.where,
                "take list[...] of the payload to get batches, or leave consume_message_batch_max_size out",
            )
        if size is None:
            size = options.pull_batch_size if signature.is_batch else 1
        return ListenerFunction(
            signature=signature,
            topic=member.topic,
            selector_type=member.options["selector_type"],
            selector_expression=member.options["selector_expression"],
            batch_max_size=size,
            on_invalid=member.options["on_invalid"],
            replies=member.candidate.replies,
        )

    def check_topics(self, group: str, functions: Sequence[ListenerFunction]) -> None:
        """Tell of functions that would get the same messages: a group subscribes a topic once, for all of them."""
        for number, other in enumerate(functions):
            for one in functions[:number]:
                both = overlap(one, other) if one.topic == other.topic else None
                if both is not None:
                    self.wrong(
                        f"group {group!r} has two functions for topic {one.topic!r}: {one.signature.name} and "
                        f"{other.signature.name}, {both}",
                        f"{one.signature.where} and {other.signature.where}",
                        "give each tags of its own by selector_expression=, or one of them another consumer group",
                    )

    def check_function_options(
        self, settings: ClusterSettings, group: str, members: Sequence[_Member], group_layer: OptionLayer
    ) -> None:
        if len(members) == 1:
            return
        for name in FUNCTION_OPTIONS:
            if name in group_layer.values:
                key = f"{settings.prefix}.consumer.listeners.{group}.{name.replace('_', '-')}"
                named = ", ".join(member.signature.name for member in members)
                self.wrong(
                    f"{key} is an option of one function, and the group has {len(members)}: {named}",
                    group_layer.where(name),
                    "write it in the decorator of the function that is meant",
                )

    def group_options(
        self, group: str, members: Sequence[_Member], group_layer: OptionLayer, defaults: OptionLayer
    ) -> tuple[GroupOptions, dict[str, str]]:
        """The group's options, and where each was written that was."""
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        by_default: set[str] = set()
        for name in GROUP_OPTIONS:
            by_decorators = [member for member in members if member.candidate.declared.values.get(name) is not None]
            if group_layer.values.get(name) is not None:
                layer = group_layer
            elif by_decorators:
                layer = by_decorators[0].candidate.declared
                self.check_agreement(group, name, by_decorators)
            elif defaults.values.get(name) is not None:
                layer = defaults
                by_default.add(name)
            else:
                continue
            values[name], origins[name] = layer.values[name], layer.where(name)
        layers = [group_layer, *(member.candidate.declared for member in members), defaults]
        _keep_the_nearest_keys(values, layers)
        self.check_user(group, values, origins)
        self.check_timestamp(group, values, origins, by_default)
        self.check_trace_topic(group, values, origins)
        self.check_pair(group, layers, origins)
        return GroupOptions(**values), origins

    def check_trace_topic(self, group: str, values: dict[str, Any], origins: Mapping[str, str]) -> None:
        """Tell of a topic for message trace that can be none; it is left out then."""
        if (topic := values.get("customized_trace_topic")) is not None:
            try:
                check_topic(topic)
            except InvalidMessageError as error:
                where = origins["customized_trace_topic"]
                del values["customized_trace_topic"]
                self.wrong(
                    f"customized_trace_topic of group {group!r}: {error}",
                    where,
                    "name another topic for the trace, or leave it out",
                )

    def check_pair(self, group: str, layers: Sequence[OptionLayer], origins: Mapping[str, str]) -> None:
        """Tell of a key that would go with one of another pair; ``layers`` are what says them, what wins first."""
        for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
            if one not in origins:
                continue
            first = next((layer.values[one] for layer in layers if one in layer.values), None)
            beside = next((layer.values.get(one) for layer in layers if other in layer.values), None)
            if beside is not None and first != beside:
                self.wrong(
                    f"{one} of group {group!r} would go with the {other} of another pair",
                    f"{origins[one]} and {origins[other]}",
                    f"say its {other} in the same place, or leave the {one} out",
                )

    def check_user(self, group: str, values: dict[str, Any], origins: Mapping[str, str]) -> None:
        """Tell of keys and namespaces that do not go together, and take them out of values."""
        for mismatch in mismatches(values):
            where = " and ".join(origins[name] for name in mismatch.given)
            self.wrong(f"{mismatch.told()}, for group {group!r}", where, mismatch.fix)
            for name in mismatch.given:
                del values[name]
        for name, value, why in wrong_names(values):
            self.wrong(f"{name} of group {group!r} is {value!r}: {why}", origins[name], "choose another one")
            del values[name]

    def check_timestamp(
        self, group: str, values: dict[str, Any], origins: Mapping[str, str], by_default: Collection[str]
    ) -> None:
        """Tell of a time to begin at where a new group begins elsewhere, and take it out of values.

        One that is said for all listeners, ``by_default``, is no word on a group which says itself where it begins.
        """
        begins = values.get("consume_from_where", GROUP_OPTIONS["consume_from_where"].default)
        if "consume_timestamp" not in values or begins is ConsumeFromWhere.TIMESTAMP:
            return
        del values["consume_timestamp"]
        has_own_word = "consume_from_where" in origins and "consume_from_where" not in by_default
        if "consume_timestamp" not in by_default or not has_own_word:
            places = [origins[name] for name in ("consume_timestamp", "consume_from_where") if name in origins]
            self.wrong(
                f"consume_timestamp of group {group!r} is set, and consume_from_where is {begins.name}",
                " and ".join(dict.fromkeys(places)),
                "set consume_from_where to TIMESTAMP, or leave consume_timestamp out",
            )

    def check_agreement(self, group: str, name: str, members: Sequence[_Member]) -> None:
        first, *others = members
        for other in others:
            mine, theirs = first.candidate.declared.values[name], other.candidate.declared.values[name]
            if mine != theirs:
                mine, theirs = (
                    ("a value", "another") if GROUP_OPTIONS[name].secret else (_text(name, mine), _text(name, theirs))
                )
                self.wrong(
                    f"{name} belongs to the whole group {group!r}, and two of its functions differ: "
                    f"{first.signature.name} says {mine}, {other.signature.name} says {theirs}",
                    f"{first.signature.where} and {other.signature.where}",
                    "say it in one of them only, or give one of them another consumer group",
                )

    def check_switches(self) -> None:
        for cluster, settings in self.clusters.items():
            for group, switches in settings.switches.items():
                for topic in switches:
                    known = self.topics_seen.get((cluster, group), set())
                    if topic not in known:
                        path = f"{settings.prefix}.consumer.listeners.{group}"
                        topics = f"topics of the group are: {', '.join(sorted(known))}"
                        option = settings.option_meant(topic)
                        meant = [f"did you mean {path}.{option}?"] if option else []
                        self.wrong(
                            f"{path}.{topic} is neither an option of a listener nor a topic of group {group!r}",
                            settings.where_switched(f"{group}.{topic}"),
                            " ".join([*meant, topics] if known else meant or ["no listener has that group"]),
                        )


def _keep_the_nearest_keys(values: dict[str, Any], layers: Sequence[OptionLayer]) -> None:
    """Keys and a file of keys are one user, said in two ways: what is said first takes the place of the other."""
    for layer in layers:
        said = {name for name in ("access_key", "secret_key", "credentials_file") if layer.values.get(name) is not None}
        if not said:
            continue
        dropped = ("access_key", "secret_key") if said == {"credentials_file"} else ("credentials_file",)
        if "credentials_file" not in said or said == {"credentials_file"}:
            for name in dropped:
                values.pop(name, None)
        return


def _text(name: str, value: Any) -> str:
    if GROUP_OPTIONS[name].unit is SECONDS:
        return f"{value:g}s" if value == int(value) else f"{value * 1000:g}ms"
    return str(getattr(value, "name", value))
