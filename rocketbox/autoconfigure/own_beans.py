"""rocketbox's own auto-configurations: the modules whose ``@bean`` functions every application considers."""

from __future__ import annotations

from types import ModuleType

from rocketbox.autoconfigure import embedded, health, push_listening, rocketmq, spark_listening, topics

__all__ = ["AUTO_CONFIGURATIONS"]

AUTO_CONFIGURATIONS: tuple[ModuleType, ...] = (embedded, rocketmq, topics, push_listening, spark_listening, health)
