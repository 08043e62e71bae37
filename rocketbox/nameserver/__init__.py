"""The name server: which brokers there are, which topics they hold.

``route_info`` has the tables, ``name_server`` the requests and the scan.
"""

__all__: list[str] = []
