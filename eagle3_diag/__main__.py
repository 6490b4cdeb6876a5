"""``python -m eagle3_diag`` is ``eagle3-diag``."""

from __future__ import annotations

import sys

from eagle3_diag.cli import main

if __name__ == "__main__":
    sys.exit(main())
