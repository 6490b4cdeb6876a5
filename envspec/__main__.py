"""``python -m envspec``, and the installed command ``envspec``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; see :func:`envspec.cli.main`. An interrupt while it is still being loaded ends it as any other."""
    try:
        from envspec.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("envspec: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
