"""What is set for every process of a run, before a library starts threads.

Threads of OpenMP that wait spin: alone that is quick, but beside any other busy process they take the cores from the
thread that they wait for.
"""

import os

SPINCOUNT = 1000
os.environ.setdefault("GOMP_SPINCOUNT", str(SPINCOUNT))
