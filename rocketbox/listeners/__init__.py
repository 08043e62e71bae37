"""Listeners: from marked functions to consumer groups that call them.

``binding`` reads a function's signature, ``registrar`` puts functions and options together to ``plans`` of groups,
``container`` runs a group, ``dispatch`` calls its functions with what ``arguments`` makes of the messages. Beans come
through :class:`Beans`, which is handed in.
"""

from rocketbox.listeners.binding import Beans
from rocketbox.listeners.container import ListenerContainer
from rocketbox.listeners.container_state import ContainerState, ContainerStatus
from rocketbox.listeners.dispatch import Invocation

__all__ = ["Beans", "ContainerState", "ContainerStatus", "Invocation", "ListenerContainer"]
