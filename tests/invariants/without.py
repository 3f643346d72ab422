"""Promises that nothing here could keep or break, and why."""

from __future__ import annotations

WITHOUT = {
    "I19": "one engine has no coordinator: rank 0 itself tells the others what a step is made of, and its death is I12",
    "I27": "a request is one sequence: nothing fans out, so no sibling can be left running",
}
"""By name: the reason."""
