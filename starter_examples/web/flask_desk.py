"""In Flask: ``flask --app starter_examples.web.flask_desk:create run``; ``curl -X POST localhost:5000/departures/AA1``.

The service has a loop and a thread of its own, in each process of the server; a process that ends stops it in order.
"""

from __future__ import annotations

from flask import Flask

from starter_examples.web.desk import Departure, app

__all__ = ["create", "web"]

web = Flask(__name__)
background = app.background()


def create() -> Flask:
    """What the server calls in each of its processes, after it has forked them."""
    background.start()
    return web


@web.post("/departures/<flight>")
def departed(flight: str) -> str:
    return app.template.blocking.send("departures", Departure(flight=flight), keys=flight).msg_id
