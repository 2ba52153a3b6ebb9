"""Pools: instances that share tags and have a strategy of their own. How they are written and read.

``role=prefill:least_load,role=decode+model=llama:power_of_two``: pools at the commas, the strategy after the last
colon, tags joined by ``+``. Names of strategies are not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

EXAMPLE = "role=decode:least_load"

_TYPES = f"give a text as {EXAMPLE!r} or a mapping as {{'role=decode': 'least_load'}}"

#: What no tag of a pool and no name of a strategy holds: whoever writes one of these meant something else by it.
_REFUSED = frozenset(";|&\"'`")


class Pool(NamedTuple):
    """The instances that carry all of ``tags`` (at least one), and the name of their strategy."""

    tags: frozenset[tuple[str, str]]
    strategy: str

    @property
    def text(self) -> str:
        """Its tags as they are written, in order of their keys."""
        return "+".join(f"{key}={value}" for key, value in sorted(self.tags))


def read_pools(written: str | Mapping[str, str]) -> tuple[Pool, ...]:
    """The pools of a text, or of a mapping of tags to strategies (``{"role=decode": "least_load"}``).

    An empty one has none. ``ValueError`` names the part that is malformed, or names the same tags as one before;
    ``TypeError`` for anything else.
    """
    if not isinstance(written, (str, Mapping)):
        raise TypeError(f"pools is {written!r}: {_TYPES}")
    pools: list[Pool] = []
    for tags, strategy in written.items() if isinstance(written, Mapping) else _parts(written):
        if not (isinstance(tags, str) and isinstance(strategy, str)):
            raise TypeError(f"pools names {strategy!r} for {tags!r}: {_TYPES}")
        _refuse(strategy, f"pool {tags.strip()!r}: strategy")
        pool = Pool(_tags(tags), strategy.strip())
        if any(pool.tags == other.tags for other in pools):
            raise ValueError(f"pool {tags.strip()!r} is named twice: one strategy per pool")
        pools.append(pool)
    return tuple(pools)


def written(pools: Iterable[Pool]) -> str:
    """The text that :func:`read_pools` reads the same pools from."""
    return ",".join(f"{pool.text}:{pool.strategy}" for pool in pools)


def read_tags(text: str, separator: str) -> dict[str, str]:
    """Tags written ``key=value``, with ``separator`` between them. ``ValueError`` names the one that is not."""
    tags: dict[str, str] = {}
    for part in text.split(separator):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ValueError(f"tag {part.strip()!r} is not written as key=value")
        if tags.setdefault(key, value) != value:
            raise ValueError(f"tag {key!r} is given twice, as {tags[key]!r} and as {value!r}")
    return tags


def _parts(text: str) -> Iterable[tuple[str, str]]:
    if not text.strip():
        return
    for number, part in enumerate(text.split(","), start=1):
        # The last one: values hold colons more often than names of strategies do.
        tags, colon, strategy = part.rpartition(":")
        if not part.strip():
            raise ValueError(
                f"pool {number} of {text!r} is empty: write it as {EXAMPLE}, pools separated by commas"
            )
        if not (colon and tags.strip() and strategy.strip()):
            raise ValueError(f"pool {part.strip()!r} is not written as tags and strategy, as in {EXAMPLE}")
        yield tags, strategy


def _tags(text: str) -> frozenset[tuple[str, str]]:
    for part in text.split("+"):
        # Of the value: a second one in a tag is a second tag, or pool, behind something that separates neither.
        _refuse(part.partition("=")[0], f"pool {text.strip()!r}: tag")
        _refuse(part.partition("=")[2], f"pool {text.strip()!r}: tag", also="=")
    try:
        return frozenset(read_tags(text, "+").items())
    except ValueError as error:
        raise ValueError(f"pool {text.strip()!r}: {error}") from None


def _refuse(part: str, what: str, also: str = "") -> None:
    """``ValueError`` if ``part`` of a pool holds a character that cannot be meant there."""
    for char in part.strip():
        if char in _REFUSED or char in also or not char.isprintable():
            raise ValueError(
                f"{what} {part.strip()!r} holds {char!r}: separate pools by commas and tags by +, as in "
                f"{EXAMPLE},role=prefill+model=m:power_of_two"
            )
