"""The same desk in FastAPI, which has a loop, and in Flask, which has none."""

__all__: list[str] = []
