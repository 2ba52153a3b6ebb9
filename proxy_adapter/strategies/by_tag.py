"""A strategy for each pool of instances: prefill and decode machines, models, racks."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from proxy_adapter import process_lane
from proxy_adapter.contract import NO_INSTANCES, Instance
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.pools import Pool
from proxy_adapter.routes import DEFAULT, Asked, Routes, asked_of
from proxy_adapter.strategies.base import CountingStrategy
from proxy_adapter.strategies.carried import Carried
from score_table.attachment import Attached
from score_table.explanation import Explanation
from score_table.lane import Lane

logger = logging.getLogger("loadboard.proxy_adapter")

_TOLD_KEPT = 1000


class ByTagStrategy:
    """See :class:`proxy_adapter.contract.Strategy`. The members choose, each in its pool; this one says which.

    1. ``hint["tags"]`` leaves only the candidates that carry these tags. Where none does, all of them are in
       question for the default: counted as ``untagged``, logged once per set of tags.
    2. The pool whose tags all candidates then carry answers, of several the first; else the default.

    ``pools`` are pairs of a pool and its strategy. ``table``, ``rng`` and ``lane`` as for
    :class:`.CountingStrategy`; each member gets a seed of its own out of ``rng``, so that what is asked of one pool does
    not change the choices in another.
    """

    name = "by_tag"

    def __init__(
        self,
        pools: Sequence[tuple[Pool, type[CountingStrategy]]],
        default: type[CountingStrategy],
        *,
        table: str | None = None,
        rng: random.Random | None = None,
        lane: Lane | None = None,
    ) -> None:
        def member(strategy: type[CountingStrategy]) -> CountingStrategy:
            own = None if rng is None else random.Random(rng.getrandbits(64))
            return strategy(table=table, rng=own, lane=lane)

        self._process_lane = process_lane.acquire(table) if table is not None and lane is None else None
        self._lane = lane if self._process_lane is None else self._process_lane.lane
        self._names = [*(pool.text for pool, _ in pools), "default"]
        # The default last: it is at the index DEFAULT.
        self._members = [*(member(strategy) for _, strategy in pools), member(default)]
        self._routes = Routes([pool for pool, _ in pools])
        self._carried = Carried([pool for pool, _ in pools])
        self._degraded: Counter[str] = Counter()
        self._told: set[Asked] = set()

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """As :meth:`.CountingStrategy.select` of the member that the request belongs to."""
        member, candidates = self._route(instances, hint)
        return member.select(candidates, hint)

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """As :meth:`.CountingStrategy.dispatch` of the member that the request belongs to."""
        member, candidates = self._route(instances, hint)
        return member.dispatch(candidates, hint, prompt_tokens=prompt_tokens)

    def why(self, instances: Sequence[Instance], hint: Any = None) -> Explanation:
        """As :meth:`.CountingStrategy.why` of the member that the request belongs to, about its candidates alone."""
        member, candidates = self._route(instances, hint, counted=False)
        return member.why(candidates, hint)

    def status(self) -> dict[str, Any]:
        """That of any strategy, for all members together, and under ``pools`` the picks of each."""
        each = [member.status() for member in self._members]
        numbers = [*self._carried.now(self._attached()), None]
        degraded = self._degraded.copy()
        for status in each:
            degraded.update(status["degraded_picks"])
        return {
            **each[DEFAULT],
            "strategy": self.name,
            "picks": sum(status["picks"] for status in each),
            "degraded_picks": dict(degraded),
            "pools": {
                name: {
                    **{key: status[key] for key in ("strategy", "picks", "degraded_picks")},
                    **({} if number is None else {"instances": number}),
                }
                for name, status, number in zip(self._names, each, numbers, strict=True)
            },
        }

    def close(self) -> None:
        """Give back what this process holds of the table. The members go on without a table."""
        held, self._process_lane = self._process_lane, None
        for member in self._members:
            member.close()
        if held is not None:
            self._lane = None
            process_lane.release(held)

    def _route(
        self, instances: Sequence[Instance], hint: Any, *, counted: bool = True
    ) -> tuple[CountingStrategy, Sequence[Instance]]:
        # A copy: another thread may change a list meanwhile.
        given = instances if type(instances) is tuple else tuple(instances)
        if not given:
            raise RuntimeError(NO_INSTANCES)
        try:
            asked = asked_of(hint)
            attached = self._attached()
            route = self._routes.find(attached, given, asked)
            if counted and attached is not None and attached.version != self._carried.version:
                self._carried.look(attached, given)
            if route.untagged and counted:
                self._say_untagged(asked)
        except Exception:
            if counted:
                self._say_failed()
            return self._members[DEFAULT], given
        candidates: Sequence[Any] = route.candidates
        return self._members[route.pool], candidates

    def _attached(self) -> Attached | None:
        held = self._process_lane
        if held is not None:
            held.ensure_running()
        lane = self._lane
        return None if lane is None else lane.current()

    def _say_failed(self) -> None:
        """Called in an ``except`` block."""
        if not self._degraded["error"]:
            logger.exception("%s: finding the pool failed; the default chooses among all", self.name)
        self._degraded["error"] += 1

    def _say_untagged(self, asked: Asked) -> None:
        self._degraded["untagged"] += 1
        if asked in self._told or len(self._told) >= _TOLD_KEPT:
            return
        self._told.add(asked)
        logger.warning(
            "none of the instances given carries the tags %s: the default strategy chooses among all of them; see the "
            "tags of the monitor's instances",
            " ".join(f"{key}={value}" for key, value in asked),
        )
