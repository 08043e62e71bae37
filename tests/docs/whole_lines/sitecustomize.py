"""For the processes of code in docs: what is printed comes at the end of its line, as on a terminal.

Unbuffered output is no substitute: it writes the pieces of ``print("a", "b")`` one by one, and a line that a thread
logs may come in between.
"""

import sys

sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # there is no other stdout at a start
