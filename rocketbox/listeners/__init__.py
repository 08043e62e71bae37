"""Listeners: from marked functions to consumer groups that call them.

``hints`` and ``binding`` read a function's signature, ``registrar`` puts functions and options together to groups,
``container`` runs a group, ``dispatch`` calls its functions. Beans come through :class:`Beans`, which is handed in.
"""

from rocketbox.listeners.binding import Beans
from rocketbox.listeners.container import ContainerState, ContainerStatus, ListenerContainer

__all__ = ["Beans", "ContainerState", "ContainerStatus", "ListenerContainer"]
