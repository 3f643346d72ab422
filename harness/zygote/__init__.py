"""The zygote: one parent process that has already imported torch and forks every process of every run from itself.

A fork costs about 20 ms where a fresh interpreter costs 2 to 3 s. The zygote holds no thread, no ZMQ context and no
process group, so that what it forks starts clean. It also is the undertaker: it announces each death before it reaps,
and when the one who asked for a run goes away, it kills what is left of the run and removes the run's folder.
"""
