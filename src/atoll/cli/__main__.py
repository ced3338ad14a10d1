"""``python -m atoll.cli``."""

import sys

from atoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
