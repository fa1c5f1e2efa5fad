"""``python -m mmdp``: the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while something is still being imported ends it quietly."""
    try:
        from mmdp.core.timing import InterruptFlag

        with InterruptFlag() as interrupt_flag:
            try:
                from mmdp.cli import main as run

                run()
            except (ImportError, SystemError):  # what compiled modules make of Ctrl-C
                if not interrupt_flag.is_set:
                    raise
                sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
