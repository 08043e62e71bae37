"""``python -m rocketbox`` is the command ``rocketbox``; what it does is said in ``rocketbox.cli``."""

from rocketbox.cli.app import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
