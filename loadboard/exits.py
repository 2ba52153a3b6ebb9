"""Exit statuses of the commands. Those of table errors are told by the errors: 69, 73, 75 and 77."""

from __future__ import annotations

import os

OK = 0
FAILED = 1
USAGE = 2
NO_PERMISSION = os.EX_NOPERM
BAD_CONFIG = os.EX_CONFIG
INTERRUPTED = 130
