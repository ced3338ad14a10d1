"""``python -m atoll.bench CONTENDER CASE``: a process that a race paces; CASE is JSON."""

import json
import sys

from atoll.bench.contenders import serve
from atoll.bench.work import Case

if __name__ == "__main__":
    serve(sys.argv[1], Case(**json.loads(sys.argv[2])))
