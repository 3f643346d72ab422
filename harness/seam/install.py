"""Installing the whole seam in this process, and making it the seam of one role in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.faults import Fault
from harness.seam import dist_seam, loop_seam, poll_seam, process_seam, site, thread_seam, zmq_seam
from harness.seam.region import Recorder
from harness.seam.site import Outlets
from harness.seam.zmq_seam import Names


def install(torch: bool = True) -> None:
    """Patches every library of the seam; ``torch`` is False in a process that must not import it."""
    zmq_seam.install()
    loop_seam.install()
    process_seam.install()
    thread_seam.install()
    poll_seam.install()
    if torch:
        dist_seam.install()


def begin(
    recorder: Recorder,
    faults: Sequence[Fault],
    outlets: Outlets,
    names: Names,
    rewrites: dict[str, str],
    group_name: Callable[[str], str],
) -> site.Seam:
    """Activates the seam for one role. Whatever a fork parent knew of its own sockets and groups is forgotten."""
    seam = site.Seam(recorder, faults, outlets)
    zmq_seam.sockets.reset(names, rewrites)
    dist_seam.groups.reset(group_name)
    site.activate(seam)
    return seam
