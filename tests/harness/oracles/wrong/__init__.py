"""Plugins for plans in tests: one engine for each oracle that is wrong in just the way that the oracle is for."""
