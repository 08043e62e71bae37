"""The broker's message store, in the layout of Apache RocketMQ's ``store`` module (5.x).

``message_store`` is the whole: what it takes in stands there (and in ``waiting``, who is told when that is safe), what
is read from it in ``reading``. ``commit_log`` (records; ``recovery`` finds their end), ``consume_queue``,
``index_file``, ``checkpoint`` and ``config_file`` are its files, all through ``rocketbox.storage``; ``dispatch``
derives queues and index from the log; ``options`` are its settings.
"""

__all__: list[str] = []
