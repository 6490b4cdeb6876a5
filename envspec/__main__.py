"""``python -m envspec``."""

from __future__ import annotations

import sys

from envspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
