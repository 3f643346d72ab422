"""The promises of the engine's clients, I1 to I44, each with the one-line changes that break it.

A test names the promise it checks, and the change under which it must fail::

    @invariant("I10", breaks=Change("engine/client/inbox.py", "self._latch.check()", "return"), kin=("I11",))
    def test_every_later_read_has_the_error(factory: ForkFactory) -> None: ...

``python -m tests.invariants`` makes each change in a copy of the tree and shows three things there: a healthy request
is still served, the tests that list the change fail, and no test fails that checks neither this promise nor its kin.
``python -m tests.invariants --list`` shows which test checks what, and which promises have no counterpart here.
"""

from tests.invariants.marking import Change as Change
from tests.invariants.marking import invariant as invariant
