"""Command lines that the demo shows, to be copied into another terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def whole_table(command: str, table: str, width: int) -> str:
    """The line that prints the table, broken where it is longer than ``width``."""
    return _fitting([f"{command} dump --table {table}"], f"{command} dump \\\n  --table {table}", width)


def own_request(proxy_url: str, width: int) -> str:
    """A streamed request to the proxy: the one of the README, in more lines where ``width`` is small."""
    curl = f"curl -N {proxy_url}/v1/chat/completions"
    header = "-H 'Content-Type: application/json'"
    body = '{"model":"simulated","stream":true,"max_tokens":400,'
    messages = '"messages":[{"role":"user","content":"hello"}]}'
    wide = [f"{curl} {header} \\", f"    -d '{body}{messages}'"]
    # JSON may be broken between its parts, and a shell keeps the break within the quotes.
    return _fitting(wide, f"{curl} \\\n  {header} \\\n  -d '{body}\n       {messages}'", width)


def _fitting(lines: Sequence[str], narrow: str, width: int) -> str:
    return "\n".join(lines) if max(map(len, lines)) <= width else narrow


def command_name() -> str:
    """How this ``loadboard`` can be called from another terminal in the present directory."""
    called = Path(sys.argv[0])
    if called.name != "loadboard" or not os.access(called, os.X_OK):
        return shlex.join([sys.executable, "-m", "loadboard"])
    found = shutil.which("loadboard")
    own_environment = sys.prefix != sys.base_prefix  # another terminal need not have it on its PATH
    if found and os.path.samefile(found, called) and not own_environment:
        return "loadboard"
    if called.is_absolute() and called.is_relative_to(Path.cwd()):
        called = called.relative_to(Path.cwd())
    text = str(called)
    return shlex.quote(text if "/" in text else f"./{text}")
