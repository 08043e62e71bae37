"""Auto-configuration: what the generic boot is told about RocketMQ, one module of ``@bean`` functions per subject."""

__all__: list[str] = []
