"""Seeded bugs: engines that are wrong on purpose, each in one module, to show what the harness finds.

A module here is a plugin. A plan names it under `engine.plugins`, and every process of the run imports it before the
configuration is read. What it changes it changes in those processes only: the engine itself never imports this package,
and no option of the engine reaches it. The module's docstring says what is wrong, and how that shows.

Beside most modules lies the scenario that shows the bug with the fewest faults. Its table ``[bug]`` (see `harness.bug`)
gives the bug an id and says what a finding has to name; the module tells by its canary (`harness.seam.bug_canary`)
where the wrong code ran and where it did harm. ``nowedge list --bugs`` shows all.
"""
