"""``python -m mmdp``: the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while something is still being imported ends it quietly."""
    try:
        from mmdp.clock import CtrlC

        with CtrlC() as keys:
            try:
                from mmdp.cli import main as run

                run()
            except (ImportError, SystemError):  # what compiled modules make of Ctrl-C
                if not keys.pressed:
                    raise
                sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
