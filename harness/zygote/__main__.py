"""``python -m harness.zygote FD FOLDER``: serve on the inherited control socket, keep runs below FOLDER."""

import os
import sys

# Before numpy and torch are imported: their thread pools would make this process unfit to fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from harness.zygote.server import main

main(int(sys.argv[1]), sys.argv[2])
