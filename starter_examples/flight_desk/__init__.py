"""The flight desk: a whole service on the departures of January 2013 (``python -m starter_examples.flight_desk``)."""

__all__: list[str] = []
