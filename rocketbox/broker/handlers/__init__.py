"""What the broker answers to each request code: one module for each family, each a class of plain functions."""

__all__: list[str] = []
