"""Functions at the seam: ``call(module:qualified.name)`` is a site, before the call and after it has returned.

A method is replaced in its class, a function of a module wherever a module of its package has taken it by name. What is
asynchronous is passed before its first step and after its last.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.instant import called
from harness.seam import site as seams


class CallSiteError(ValueError):
    """A function that is not there; one sentence with the nearest name."""


def check(site: str) -> None:
    """Whether the function of a ``call(...)`` site exists, found in the module's text. Raises CallSiteError."""
    module, name = called(site)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise CallSiteError(f"{site}: there is no module '{module}' in Python")
    names = _names(found.origin)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"; did you mean call({module}:{near[0]})?" if near else ""
        raise CallSiteError(f"{site}: '{module}' has no function '{name}'{hint}")


_parsing = threading.Lock()


@functools.cache
def _names_of(path: str) -> tuple[str, ...]:
    return tuple(sorted(_functions(ast.parse(Path(path).read_text(encoding="utf-8")))))


def _names(path: str) -> tuple[str, ...]:
    """The functions of a file. One thread at a time: in Python 3.11 two that parse may meet a SystemError."""
    with _parsing:
        return _names_of(path)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node, prefix)


def install(site: str) -> None:
    """Makes the function a site in this process, once. Raises CallSiteError."""
    module, name = called(site)
    *path, last = name.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for step in path:
            owner = getattr(owner, step)
        original = inspect.getattr_static(owner, last)
    except (ImportError, AttributeError) as error:
        raise CallSiteError(f"{site}: {error}") from None
    kind = type(original) if isinstance(original, staticmethod | classmethod) else None
    function = original.__func__ if kind is not None else original
    if hasattr(function, "__nowedge_original__"):
        return
    wrapped = _wrap(site, function)
    setattr(owner, last, wrapped if kind is None else kind(wrapped))
    if not path:
        _replace_copies(module.partition(".")[0], last, original, wrapped)


def _replace_copies(package: str, name: str, original: Any, wrapped: Any) -> None:
    for where, module in list(sys.modules.items()):
        if where.partition(".")[0] == package and vars(module).get(name) is original:
            setattr(module, name, wrapped)


def _wrap(site: str, function: Callable[..., Any]) -> Callable[..., Any]:
    call: Callable[..., Any]
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            seam = seams.active()
            if seam is None:
                return await function(*args, **kwargs)
            seam.before(site)
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                seam.failed(site, error=error)
                raise
            seam.after(site, progress=False)
            return result

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            seam = seams.active()
            if seam is None:
                return function(*args, **kwargs)
            seam.before(site)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                seam.failed(site, error=error)
                raise
            seam.after(site, progress=False)
            return result

    call.__nowedge_original__ = function  # type: ignore[attr-defined]
    return call
