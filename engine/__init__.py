"""A tensor-parallel language model engine with an async client.

The engine serves a Llama-type model on CPU over N rank processes that talk gloo, behind a client that never leaves a
caller waiting for a dead engine. Start at :class:`engine.llm.AsyncLLM`; the processes are described in
:mod:`engine.rank`, what keeps the ranks in step in :mod:`engine.relay`.

Only rank processes import torch: everything that the frontend needs can be imported without it.
"""
