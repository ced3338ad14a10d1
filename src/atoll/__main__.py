"""``python -m atoll``, and the command ``atoll``."""

import sys


def main() -> int:
    """Load the command line and run one command; Ctrl-C ends it quietly already while it is loaded."""
    try:
        from atoll.cli import main as run

        return run()
    except BaseException as error:
        if KeyboardInterrupt not in (type(error), type(error.__cause__)):  # Python 3.11 may make another error of it
            raise
        return 130


if __name__ == "__main__":
    sys.exit(main())
