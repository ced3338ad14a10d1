"""``python benchmarks/contend.py CONTENDER CASE``: a contender's process, paced by a race; CASE is JSON."""

import json
import os
import sys

from bench.contenders import serve
from bench.work import Case

if __name__ == "__main__":
    serve(sys.argv[1], Case(**json.loads(sys.argv[2])))
    os._exit(0)  # PyTorch takes most of a second to shut down, and the race would wait for it
