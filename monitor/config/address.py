"""Base URLs of instances: checked, normalised, and shown without what may be secret in them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

#: What an identity block of the table holds of a URL, in bytes.
MAX_URL_BYTES = 300

_DEFAULT_PORTS = {"http": 80, "https": 443}
_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?.*@", re.DOTALL)
_HOST = re.compile(r"[\w.~-]+")


def shown(url: str) -> str:
    """``url`` for messages: a user name, a password and a query are replaced by ``***``."""
    return re.sub(r"\?.*", "?***", _USERINFO.sub(r"\1***@", url), flags=re.DOTALL)


def base_url(text: str) -> str:
    """The URL as the monitor uses it: lower-case host, explicit port, path prefix without its last slash.

    Raises ``ValueError`` with a whole sentence that never quotes a password.
    """
    name = repr(shown(text))
    if any(char.isspace() or not char.isprintable() for char in text):
        raise ValueError(f"{name} has a space or an unprintable character in it: remove it")
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"{name} does not say how to connect: write http://{shown(text)}")
    if scheme.lower() not in _DEFAULT_PORTS:
        raise ValueError(f"{name} has the scheme {scheme!r}: use http:// or https://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise ValueError(
            f"{name} has a user name or password in it, and addresses are shown to everybody: "
            "remove it and use bearer_token, bearer_token_env or bearer_token_file"
        )
    if "?" in rest or "#" in rest:
        raise ValueError(
            f"{name} has a query or fragment, but it is a base URL: leave off all from ? or # on"
        )
    host, port = _host_and_port(authority, name)
    path = urlsplit(text).path.rstrip("/")
    url = f"{scheme.lower()}://{host}:{port or _DEFAULT_PORTS[scheme.lower()]}{path}"
    if len(url.encode()) > MAX_URL_BYTES:
        raise ValueError(f"{name} is {len(url.encode())} bytes long and the table holds {MAX_URL_BYTES}")
    return url


def address_of(url: str) -> str:
    """``host:port`` of a URL that :func:`base_url` returned; an IPv6 host stays in its brackets."""
    return urlsplit(url).netloc


def _host_and_port(authority: str, name: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, tail = authority[1:].partition("]")
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{name} has no IPv6 address between its brackets") from None
        if not bracket or (tail and not tail.startswith(":")) or "%" in host:
            raise ValueError(f"{name} has no clear host: write an IPv6 address as [2001:db8::1]:8000")
        host, port = f"[{address.compressed}]", tail[1:] if tail else None
    else:
        if authority.count(":") > 1:
            raise ValueError(
                f"{name} seems to have an IPv6 address: put it in brackets, as in http://[::1]:8000"
            )
        host, colon, digits = authority.lower().partition(":")
        port = digits if colon else None
        try:
            host.encode("idna")
        except UnicodeError:
            host = ""
        if not _HOST.fullmatch(host):
            raise ValueError(f"{name} has no valid host name: write it as http://HOST:PORT")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise ValueError(
            f"{name} has the port {port!r}: use a number from 1 to 65535, or leave off the colon"
        )
    return host, int(port)
