"""What is known of a consumer group and its functions before anything is connected: the plan of one container.

The registrar makes it, the container runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketbox.listeners.options import GroupOptions, OnInvalid
from rocketbox.listeners.signature import HandlerSignature
from rocketbox.marks import send_to
from rocketbox.message import ConsumeMode, MessageModel, SelectorType

__all__ = ["ContainerPlan", "ListenerFunction"]


@dataclass(frozen=True, kw_only=True)
class ListenerFunction:
    """One function of a group and what it owns: topic, selector, payload, batch, and where its results go."""

    signature: HandlerSignature
    topic: str
    selector_type: SelectorType
    selector_expression: str
    batch_max_size: int
    on_invalid: OnInvalid
    replies: tuple[send_to, ...]


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """What the registrar found: a group of a cluster (None: the main one), its functions, and its options.

    ``origins`` tells for each group option that somebody said, where.
    """

    cluster: str | None
    group: str
    functions: tuple[ListenerFunction, ...]
    options: GroupOptions
    origins: dict[str, str]

    @property
    def topics(self) -> tuple[str, ...]:
        """What it subscribes; functions of one topic have disjoint tags."""
        return tuple(dict.fromkeys(function.topic for function in self.functions))

    @property
    def where(self) -> str:
        """Where its first function stands."""
        return self.functions[0].signature.where

    @property
    def user(self) -> GroupOptions:
        """Whose keys and namespace its requests have."""
        return self.options

    def describe(self) -> list[str]:
        """One line for each listener, as it stands in the start log."""
        options = self.options
        times = options.max_reconsume_times
        if options.message_model is MessageModel.BROADCASTING:
            retries = "no retries (broadcasting)"
        elif times < 0 and options.consume_mode is ConsumeMode.ORDERLY:
            retries = "retries without end, the queue waits"
        else:
            retries = f"{16 if times < 0 else times} retries, then %DLQ%{self.group}"
        said = "; ".join(f"{name.replace('_', '-')} said in {where}" for name, where in self.origins.items())
        lines = []
        for function in self.functions:
            line = (
                f"listener {function.signature.name} ({function.signature.where}): topic {function.topic}, "
                f"selector {function.selector_expression}, group {self.group}"
                + (f" of cluster {self.cluster}" if self.cluster else "")
                + f", {options.consume_mode.name.lower()}, concurrency {options.concurrency}"
                + (f", batches of up to {function.batch_max_size}" if function.signature.is_batch else "")
                + f", {retries}"
            )
            if function.replies:
                line += f", sends on to {', '.join(reply.destination for reply in function.replies)}"
            lines.append(line + (f" [{said}]" if said else ""))
        return lines
