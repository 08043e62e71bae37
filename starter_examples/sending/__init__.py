"""Small services that send: in each way, in order, later, together, and compressed."""

__all__: list[str] = []
