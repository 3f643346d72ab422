"""`python -m engine`: run an engine from the command line."""

import os
import signal


def _exit(number: int, frame: object) -> None:
    """End on the spot: nothing has been started yet that would have to be stopped."""
    os._exit(128 + number)


if __name__ == "__main__":
    # Before anything else is imported, which takes a moment: from here on Ctrl-C has no traceback.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _exit)

    from engine.cli import run

    run()
