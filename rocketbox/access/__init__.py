"""Who may do what at a server: signed requests, accounts of ACL 1.0 and 2.0, and what each request needs.

Source: Apache RocketMQ 4.9.7 ``acl``, 5.x ``auth``.
"""

from __future__ import annotations

__all__: list[str] = []
