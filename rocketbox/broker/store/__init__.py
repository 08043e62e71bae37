"""The broker's message store, in the layout of Apache RocketMQ's ``store`` module (5.x).

``message_store`` is the whole; ``commit_log`` (records and their recovery), ``consume_queue``, ``index_file``,
``checkpoint`` and ``config_file`` are its files, all through ``storage``; ``options`` are its settings.
"""

__all__: list[str] = []
