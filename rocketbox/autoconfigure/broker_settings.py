"""The keys of ``rocketbox.embedded`` that are Apache's broker settings, as broker and store declare them.

For who shows or names keys: JSON Schema, reference, variables of the environment. The broker reads their values itself
(``broker.options.read_broker_options``), as it does for ``rocketbox broker``. Loaded only where one is asked for.
"""

from __future__ import annotations

from rocketbox.autoconfigure.option_models import Properties, with_options
from rocketbox.embedded import EmbeddedOptions

__all__ = ["BrokerProperties"]


@with_options({key.replace("-", "_"): option for key, option in EmbeddedOptions.broker_settings().items()})
class BrokerProperties(Properties):
    """Apache's settings of the embedded broker."""
