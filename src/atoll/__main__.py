"""``python -m atoll``, and the command ``atoll``."""

import sys


def main() -> int:
    """Load the command line and run one command; Ctrl-C ends it quietly already while it is loaded."""
    try:
        from atoll.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
