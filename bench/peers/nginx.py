"""nginx as its documentation shows it for unequal work: ``least_conn``, several worker processes, keepalive."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bench.peers.client import WORKER_HEADER

MISSING = "nginx is not installed: apt-get install nginx-light (Debian, Ubuntu), or measure the rest with --without-nginx"

_UPSTREAM = "engines"
# Of each worker, to all engines together; more than it ever uses at once outside of a burst.
_IDLE_CONNECTIONS = 64


def find() -> str | None:
    """The program; ``None`` where it is not installed."""
    # Debian keeps it where only root looks.
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


def command(program: str, directory: Path, config: str) -> list[str]:
    """Writes ``config`` into ``directory``, which must exist; what starts nginx in the foreground with it."""
    file = directory / "nginx.conf"
    file.write_text(config)
    return [program, "-p", str(directory), "-c", str(file), "-e", "stderr"]


def configuration(port: int, engines: Sequence[str], *, workers: int, zone: bool) -> str:
    """A whole configuration that listens on ``port`` of 127.0.0.1.

    ``zone`` puts the counts of connections into memory that the workers share; by default, and in most
    examples, each worker counts its own. Paths are relative to nginx's prefix directory. Each answer tells the
    worker that passed it on.
    """
    servers = "\n".join(f"        server {urlsplit(url).netloc};" for url in engines)
    shared = f"        zone {_UPSTREAM} 64k;\n" if zone else ""
    # Started by root, the workers would else run as a user who cannot enter the directory.
    user = f"user {pwd.getpwuid(0).pw_name};\n" if os.geteuid() == 0 else ""
    return f"""\
{user}worker_processes {workers};
daemon off;
pid nginx.pid;
error_log stderr warn;
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream {_UPSTREAM} {{
{shared}        least_conn;
{servers}
        keepalive {_IDLE_CONNECTIONS};
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://{_UPSTREAM};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            add_header {WORKER_HEADER} $pid always;
        }}
    }}
}}
"""
