"""An instant: one place in the program text of one run, named exactly and without seconds.

Text form (``ROLE`` is a role name such as ``dp0.rank0``; ``LINK.CALL`` is a site)::

    ROLE:LINK.CALL[KIND]#N:before|after     dp0.rank0:relay.send[hello]#2:after
    ROLE:call(MODULE:NAME)#N:before|after   dp0.rank1:call(engine.scheduler:Scheduler.schedule)#3:before
    ROLE:start  ·  ROLE:exit                dp0.rank1:start

``[KIND]`` and ``#N`` may be left out: any kind, the first occurrence. Occurrences are counted per role, site and kind
from the start of the process, so ``relay.send[step]#1`` is the first step frame however many hellos came before.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Side = Literal["before", "after"]

_TEXT = re.compile(
    r"""(?P<role>[A-Za-z][\w.-]*)
        :(?P<site>call\([A-Za-z_][\w.]*:[A-Za-z_][\w.]*\)|[A-Za-z_][\w.]*)
        (?:\[(?P<kind>[\w?*-]+)\])?
        (?:\#(?P<n>\d+))?
        (?::(?P<side>before|after))?""",
    re.VERBOSE,
)
_LIFE = frozenset({"start", "exit"})
_CALL = "call("


class InstantError(ValueError):
    """A text that names no instant; the message says what is wrong and shows the form."""


class _Fields(NamedTuple):
    role: str
    site: str
    kind: str | None = None
    n: int = 1
    side: Side = "after"


def is_call(site: str) -> bool:
    """Whether a site is a function, ``call(module:qualified.name)``."""
    return site.startswith(_CALL)


def called(site: str) -> tuple[str, str]:
    """The module and the qualified name of the function that a site is."""
    module, _, name = site.removeprefix(_CALL).rstrip(")").partition(":")
    return module, name


class Instant:
    """The n-th time that ``role`` passes ``site`` (with a frame of ``kind``, if given), before or after the call.

    A value: equal, hashed and ordered by its fields. Not a msgspec record, since plans write it as text.
    """

    __slots__ = ("_fields",)

    def __init__(self, role: str, site: str, kind: str | None = None, n: int = 1, side: Side = "after") -> None:
        self._fields = _Fields(role, site, kind, n, side)

    @property
    def role(self) -> str:
        return self._fields.role

    @property
    def site(self) -> str:
        return self._fields.site

    @property
    def kind(self) -> str | None:
        return self._fields.kind

    @property
    def n(self) -> int:
        return self._fields.n

    @property
    def side(self) -> Side:
        return self._fields.side

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instant) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __repr__(self) -> str:
        return f"Instant.parse({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> Instant:
        """Reads the text form. Raises InstantError with one clear sentence."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InstantError(
                f"'{text}' is not an instant; expected ROLE:LINK.CALL[KIND]#N:before|after, "
                "ROLE:call(MODULE:NAME)#N:before|after, ROLE:start or ROLE:exit, "
                "for example dp0.rank0:relay.send[hello]#2:after"
            )
        role, site, kind, n, side = match.group("role", "site", "kind", "n", "side")
        if site in _LIFE:
            if kind or n or side:
                raise InstantError(f"'{text}': {site} takes no kind, number or side; write {role}:{site}")
            return cls(role, site)
        if "." not in site:
            raise InstantError(
                f"'{text}': '{site}' is no site; a site is LINK.CALL such as relay.send, or start or exit"
            )
        if kind and site.startswith(_CALL):
            raise InstantError(f"'{text}': a call has no kind; drop [{kind}]")
        if n is not None and int(n) < 1:
            raise InstantError(f"'{text}': occurrences count from #1")
        if kind is not None and side == "before" and site.endswith(".recv"):
            raise InstantError(f"'{text}': before a receive its kind is not known yet; drop [{kind}] or write :after")
        return cls(role, site, kind, int(n) if n else 1, "before" if side == "before" else "after")

    def __str__(self) -> str:
        if self.site in _LIFE:
            return f"{self.role}:{self.site}"
        kind = f"[{self.kind}]" if self.kind else ""
        return f"{self.role}:{self.site}{kind}#{self.n}:{self.side}"
