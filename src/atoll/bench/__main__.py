"""``python -m atoll.bench CONTENDER CASE``: a process that a race paces; CASE is JSON."""

import json
import os
import sys

from atoll.bench.contenders import serve
from atoll.bench.work import Case

if __name__ == "__main__":
    serve(sys.argv[1], Case(**json.loads(sys.argv[2])))
    os._exit(0)  # PyTorch takes most of a second to be torn down, and the race waits for it
