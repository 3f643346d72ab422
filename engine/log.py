"""One logger per role, on stderr, with the role in front."""

from __future__ import annotations

import logging
import os
import sys

LEVEL_VARIABLE = "NOWEDGE_ENGINE_LOG"
"""Environment variable that overrides the configured level of every role."""


def role_logger(role: str, level: str) -> logging.Logger:
    """The logger of `role`; `level` holds unless the environment says otherwise."""
    wanted = os.environ.get(LEVEL_VARIABLE, level).upper()
    logger = logging.getLogger(f"nowedge.engine.{role}")
    logger.setLevel(wanted if wanted in logging.getLevelNamesMapping() else level)
    logger.propagate = False
    # Fresh each time: a forked rank inherits its parent's handlers, and sys.stderr may have been replaced since.
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {role}: %(message)s"))
    logger.addHandler(handler)
    return logger
