"""The ``rocketbox`` command: ``app`` the root, one module for each command."""

__all__: list[str] = []
