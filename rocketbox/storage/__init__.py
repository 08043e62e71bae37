"""The file system as the broker's store and the client's files use it, so that tests can put another in its place.

``file_system`` what is asked of one, and the machine's own · ``memory_storage`` one in memory that records every call.
"""

__all__: list[str] = []
