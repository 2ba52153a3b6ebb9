"""``make test-real``: put the real parts in place, then run pytest on them; pytest's exit status is the answer."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.real.environment import ROOT, NotPossible, prepare


def main() -> int:
    """Run everything; 1 where this machine cannot."""
    # A terminated run tidies up like an interrupted one: the servers are in sessions of their own and would live on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        prepare()
    except NotPossible as error:
        sys.stderr.write(f"test-real: {error}\n")
        return 1
    return pytest.main(
        [
            *("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")),
            # The ordinary run leaves this directory out by that setting.
            *("--override-ini", "norecursedirs=.*"),
            *("--verbose", "--exitfirst", "--tb=short", "-p", "no:cacheprovider"),
            str(ROOT / "tests" / "real"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
