"""Debian's packages in a folder of their own: this machine's package state is neither used nor changed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.platform.trees import NotPossible, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Another mirror, where the usual one cannot be reached.
MIRROR_VARIABLE = "DEBIAN_MIRROR"

_CONFIG = """
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "{user}";
"""


class Debian:
    """One release of Debian, seen by an apt that knows of no installed package."""

    def __init__(self, folder: Path, suite: str, architecture: str) -> None:
        """Keeps all it needs in ``folder``. :class:`NotPossible` where this machine has no apt, or no key."""
        for tool in ("apt-get", "dpkg-deb", "tar"):
            if shutil.which(tool) is None:
                raise NotPossible(f"there is no {tool}: this takes its parts from Debian's packages")
        if not KEYRING.exists():
            raise NotPossible(f"{KEYRING} is not there: apt-get install debian-archive-keyring")
        self.folder = folder
        for part in ("state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        mirror = os.environ.get(MIRROR_VARIABLE, "http://deb.debian.org/debian")
        (folder / "sources.list").write_text(
            "".join(f"{kind} [signed-by={KEYRING}] {mirror} {suite} main\n" for kind in ("deb", "deb-src"))
        )
        user = "root" if os.geteuid() == 0 else "_apt"
        (folder / "apt.conf").write_text(_CONFIG.format(folder=folder, architecture=architecture, user=user))
        self._apt("update")

    def unpack(self, names: Sequence[str], root: Path) -> None:
        """Put the packages and all they depend on into ``root``, as files: none of their scripts is run."""
        self._apt("install", "--yes", "--download-only", "--no-install-recommends", *names)
        for package in sorted((self.folder / "cache/archives").glob("*.deb")):
            run(["dpkg-deb", "--extract", package, root])

    def source(self, name: str, to: Path) -> Path:
        """The unpacked upstream sources of the package ``name``, without Debian's changes."""
        to.mkdir(parents=True, exist_ok=True)
        self._apt("source", "--download-only", name, cwd=to)
        (archive,) = (path for path in to.iterdir() if re.search(r"\.orig\.tar\.\w+$", path.name))
        run(["tar", "-xf", archive, "-C", to])
        (unpacked,) = (path for path in to.iterdir() if path.is_dir())
        return unpacked

    def _apt(self, *arguments: str, cwd: Path | None = None) -> None:
        run(["apt-get", "-qq", *arguments], cwd=cwd, env={"APT_CONFIG": str(self.folder / "apt.conf")})
