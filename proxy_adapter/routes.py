"""Which pool a request belongs to, and which of the given instances are in question for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

from proxy_adapter.contract import InstanceLike
from proxy_adapter.pools import Pool
from score_table.attachment import Attached

_LISTS_KEPT = 64
#: The index of no pool: the default strategy.
DEFAULT = -1

#: The tags that a request asks for; empty where it asks for none.
Asked = tuple[tuple[str, str], ...]


class Route(NamedTuple):
    """The answer for one list of instances and the tags that were asked for."""

    instances: tuple[InstanceLike, ...]  #: as given; held, so that their identities stay theirs
    candidates: tuple[
        InstanceLike, ...
    ]  #: of these, the ones to choose from; all where none carries the tags
    pool: int  #: index of the pool, or ``DEFAULT``
    untagged: bool  #: no candidate carries the tags that were asked for

    def is_of(self, instances: tuple[InstanceLike, ...]) -> bool:
        """Whether these very objects were given, in this order; equal ones are not the same."""
        mine = self.instances
        return mine is instances or (len(mine) == len(instances) and all(map(is_, mine, instances)))


class _Known(NamedTuple):
    version: int
    latest: dict[Asked, Route]
    routes: dict[tuple[Asked, tuple[int, ...]], Route]


class Routes:
    """Keeps the routes of the lists seen lately, for one slot map of the table at a time.

    An instance's tags are those of its slot; those of one without a slot are its object's own ``tags``, a mapping,
    where it has such a thing.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = tuple(pools)
        self._known = _Known(0, {}, {})

    def find(self, attached: Attached | None, instances: tuple[InstanceLike, ...], asked: Asked) -> Route:
        """The route of ``instances`` (not empty). Raises what reading attributes of the objects raises."""
        version = -1 if attached is None else attached.version
        if not version:  # between two slot maps: nothing to keep
            return self._make(attached, instances, asked)
        known = self._known
        if known.version != version:
            # Replaced as a whole: a slower thread that still reads the old table stores into the old routes.
            known = self._known = _Known(version, {}, {})
        route = known.latest.get(asked)
        if route is not None and route.is_of(instances):
            return route
        key = (asked, tuple(map(id, instances)))
        route = known.routes.get(key)
        if route is None:
            route = self._make(attached, instances, asked)
            if len(known.routes) >= _LISTS_KEPT:
                known.routes.clear()
                known.latest.clear()
            known.routes[key] = route
        known.latest[asked] = route
        return route

    def _make(self, attached: Attached | None, instances: tuple[InstanceLike, ...], asked: Asked) -> Route:
        tags = [tags_of(instance, attached) for instance in instances]
        wanted = set(asked)
        inside = [position for position, carried in enumerate(tags) if wanted <= carried]
        if not inside:
            return Route(instances, instances, DEFAULT, True)
        common = frozenset.intersection(*(tags[position] for position in inside))
        pool = next((index for index, pool in enumerate(self._pools) if pool.tags <= common), DEFAULT)
        every = len(inside) == len(instances)
        return Route(instances, instances if every else tuple(instances[at] for at in inside), pool, False)


def asked_of(hint: Any) -> Asked:
    """The tags that ``hint["tags"]`` asks for. ``TypeError`` where that is no mapping; raises what reading raises."""
    if hint is None or not (type(hint) is dict or isinstance(hint, Mapping)):
        return ()
    tags = hint.get("tags")
    if tags is None:
        return ()
    if not (type(tags) is dict or isinstance(tags, Mapping)):
        raise TypeError(f'hint["tags"] is {tags!r}: give a mapping, as {{"role": "decode"}}')
    return _texts(tags)


def tags_of(instance: InstanceLike, attached: Attached | None) -> frozenset[tuple[str, str]]:
    """The tags of its slot, else its own."""
    if attached is not None:
        slot = attached.directory.find(
            str(getattr(instance, "instance_id", None)),
            getattr(instance, "host", None),
            getattr(instance, "port", None),
        )
        if slot is not None:
            return frozenset(attached.directory.holders[slot].tags.items())
    own = getattr(instance, "tags", None)
    return frozenset(_texts(own)) if isinstance(own, Mapping) else frozenset()


def _texts(tags: Mapping[Any, Any]) -> Asked:
    items = tuple(tags.items())
    for key, value in items:
        if type(key) is not str or type(value) is not str:
            return tuple([(str(key), str(value)) for key, value in items])
    return items
