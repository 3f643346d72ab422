"""The sites that there can be: what the seam makes of a target's links and process groups.

It tells a misspelt instant before anything is run. What exists and is never passed only a run can tell.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from harness.instant import Instant, is_call
from harness.seam import call_seam
from harness.seam.operations import FORM, OPERATIONS, STORE, STORE_CALLS

CALLS = ("bind", "connect", "subscribe", "unsubscribe", "close", "send", "recv", "poll")
"""What is a site on a link."""


class UnknownSiteError(ValueError):
    """An instant at a site that does not exist; one sentence with the nearest name."""


def check_site(at: Instant, links: Sequence[str], groups: Sequence[str], kinds: Sequence[str]) -> None:
    """Raises UnknownSiteError; ``kinds`` are the kinds of frame of the instant's link, empty where they are unknown."""
    if at.site in ("start", "exit"):
        return
    if is_call(at.site):
        try:
            call_seam.check(at.site)
        except call_seam.CallSiteError as error:
            raise UnknownSiteError(str(error)) from None
        return
    sites = [f"{link}.{call}" for link in links for call in CALLS]
    sites += [f"{group}.{operation}" for group in groups for operation in dict.fromkeys(OPERATIONS.values())]
    sites += [FORM, *(f"{STORE}.{call}" for call in STORE_CALLS)]
    if at.site not in sites:
        near = difflib.get_close_matches(at.site, sites, n=1)
        hint = f"did you mean {near[0]}?" if near else f"links are {', '.join(links)}, groups {', '.join(groups)}"
        raise UnknownSiteError(f"'{at}': there is no site '{at.site}'; {hint}")
    if at.kind is not None and kinds and at.kind not in kinds:
        near = difflib.get_close_matches(at.kind, kinds, n=1)
        hint = f"did you mean [{near[0]}]?" if near else f"there is {', '.join(kinds)}"
        raise UnknownSiteError(f"'{at}': no frame of kind '{at.kind}' is known at {at.site}; {hint}")
