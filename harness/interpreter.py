"""Command lines that start this very interpreter again: same flags, same import path, from any directory."""

from __future__ import annotations

import json
import sys


def python(module: str, *args: str) -> list[str]:
    """The command that runs ``module`` as a program, as ``python -m`` does, with this process's import path."""
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    code = f"import sys, runpy; sys.path[:] = {json.dumps(sys.path)}; {run}"
    optimise = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return [sys.executable, *optimise, "-c", code, *args]
