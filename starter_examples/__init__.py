"""Services to start from; each folder is one, with its data and its rocketbox.yaml."""

__all__: list[str] = []
