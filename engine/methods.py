"""Methods that are called by name from afar.

What may be called is what has been registered, and a call's arguments are checked against the method's own signature,
so nothing that a caller sends can reach anything else.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from engine.codec import prove_sendable
from engine.errors import EngineError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Methods:
    """Functions by name. The first parameter of each is the engine's core, the rest are the call's arguments."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, function: FunctionT) -> FunctionT:
        """Decorator: make a function callable by its name."""
        self._functions[function.__name__] = function
        return function

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def unknown(self, name: str) -> str:
        """What to answer for a name that is not there."""
        return f"no {self.kind} method {name}; there is {', '.join(sorted(self._functions))}"

    def call(self, name: str, core: object, args: Sequence[Any]) -> Any:
        """Call a method that is there. Raises TypeError for arguments that it does not take, and what it raises."""
        function = self._functions[name]
        return function(core, *_checked(function, args))


def said(error: BaseException) -> str:
    """An error's text, as it can be sent."""
    try:
        text = str(error)
    except Exception:  # somebody's own __str__
        text = ""
    return (text or type(error).__name__).encode(errors="backslashreplace").decode()


def attempt(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `action` returns, or the text of the error that it raises.

    Errors of the engine's own go through: a peer that died or is late, an order to leave, pages that do not add up.
    """
    try:
        return action(), None
    except EngineError:
        raise
    except Exception as error:
        return None, said(error)


def require_sendable(value: Any) -> None:
    """Raise ValueError if a reader could not be sent this value."""
    try:
        prove_sendable(value)
    except Exception as error:  # also what a value's own methods raise
        raise ValueError(f"its result cannot be sent: {said(error)}") from error


def _checked(function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    signature = inspect.signature(function)
    names = list(signature.parameters)[1:]
    try:
        signature.bind(None, *args)
    except TypeError as error:
        raise TypeError(f"{error}; it takes ({', '.join(names)})") from None
    # The core's own module imports this one, so its type has no name here; nothing is checked against it.
    kinds = typing.get_type_hints(function, localns={"EngineCore": object})
    return [_converted(name, kinds[name], value) for name, value in zip(names, args, strict=False)]


def _converted(name: str, kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None
