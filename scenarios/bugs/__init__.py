"""Seeded bugs: engines that are wrong on purpose, each in one module, to show what the harness finds.

A module here is a plugin. A plan names it under `engine.plugins`, and every process of the run imports it before the
configuration is read. What it changes it changes in those processes only: the engine itself never imports this package,
and no option of the engine reaches it. The module's docstring says what is wrong, and how that shows.
"""
