"""``python -m mmdp``: the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it quietly."""
    try:
        from mmdp.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
