"""The seam: what is installed in a child process before the target's code runs.

It wraps the libraries that a tensor-parallel engine talks through (pyzmq, ``torch.distributed``, asyncio, threads,
process start and exit), so that every call is a site: recorded in shared memory that survives SIGKILL, visible in the
thread's wait slot, and able to carry a fault. The target's own code is never touched.
"""
