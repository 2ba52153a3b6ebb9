"""``python -m loadboard`` is ``loadboard``."""

from __future__ import annotations

import sys

from loadboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
