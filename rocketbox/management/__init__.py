"""What is told of a running application to those who operate it: its health."""

__all__: list[str] = []
