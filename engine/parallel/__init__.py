"""Tensor parallelism: the ranks' collectives and the sharded layers."""
