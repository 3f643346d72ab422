"""Plugins of plans act in the processes of a run: in the process that only checks a plan they change nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FOLDERS = ("scenarios/bugs", "scenarios/controls", "tests/harness/oracles/wrong", "tests/harness")
NONE = ("__init__", "conftest")
"""Modules there that no plan names."""

CODE = """
import importlib, sys
import engine.llm, engine.rank, engine.client.sync, engine.client.guest, engine.relay.pushpull

def all_there_is():
    found = {}
    for module in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        for name, value in list(vars(sys.modules[module]).items()):
            found[module, name] = value
            if isinstance(value, type) and value.__module__ == module:
                found.update({(module, name, part): inner for part, inner in list(vars(value).items())})
    return found

for plugin in sys.argv[1:]:
    before = all_there_is()
    importlib.import_module(plugin)
    after = all_there_is()
    changed = [place for place in before if after.get(place) is not before[place]]
    print(plugin, ".".join(changed[0]) if changed else "")
"""


def plugins() -> list[str]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]
    named = [path for path in files if path.stem not in NONE and not path.stem.startswith("test_")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in named]


def test_a_plugin_that_is_only_imported_changes_nothing_of_the_engine() -> None:
    found = plugins()
    assert len(found) > 30
    told = subprocess.run([sys.executable, "-c", CODE, *found], capture_output=True, text=True, cwd=ROOT, check=True)
    assert told.stdout.splitlines() == [f"{plugin} " for plugin in found]
