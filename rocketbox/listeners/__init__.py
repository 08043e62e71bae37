"""Listeners: from marked functions to consumer groups that call them.

``hints`` and ``binding`` read a function's signature, ``registrar`` puts functions and options together to ``plans`` of
groups, ``container`` runs a group, ``dispatch`` calls its functions. Beans come through :class:`Beans`, which is handed
in.
"""

from rocketbox.listeners.binding import Beans
from rocketbox.listeners.container import ListenerContainer
from rocketbox.listeners.container_state import ContainerState, ContainerStatus

__all__ = ["Beans", "ContainerState", "ContainerStatus", "ListenerContainer"]
