"""The generic part of the framework: configuration, conditions, beans, life cycle. It knows nothing of RocketMQ.

Nothing is imported here: ``rocketbox.boot.marks`` and ``rocketbox.boot.conditions`` stay light for users' modules.
"""

from __future__ import annotations

__all__: list[str] = []
