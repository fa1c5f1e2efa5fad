"""``python -m mmdp``: the command line."""

from mmdp.cli import main

if __name__ == "__main__":
    main()
