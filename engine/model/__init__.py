"""The model that runs: a Llama-type decoder. Importing this package does not import torch."""
