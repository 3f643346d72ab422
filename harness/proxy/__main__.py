"""Entry of the proxy process: `python -m harness.proxy CONTROL_FD [SIGNAL_FD]`."""

from __future__ import annotations

import sys

from harness.proxy.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
