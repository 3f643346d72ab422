"""Clients of an engine in other processes. Importing this package does not import torch."""
