"""``python -m mixbit``."""

import sys

from mixbit.cli import main

if __name__ == "__main__":
    sys.exit(main())
