"""Pools: which instances are scored together, by which mode, and what is typical of them.

Decode machines say nothing about prefill machines: every median and mean of the fleet, and every score, is
taken over one pool alone. Without pools in the configuration there is one, which has all slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from monitor.config import MonitorConfig, PoolConfig, Scoring
from monitor.estimate.means import Means
from monitor.estimate.selection import Selection
from monitor.limits import NO_LIMITS, Limits
from monitor.scores import Loads, ScoreMode, score_mode
from score_table.identity import Prices


@dataclass(frozen=True)
class Rules:
    """What of a pool's configuration a tick goes by, the score apart."""

    nominal_kv_capacity: float = 400_000.0  #: tokens, where no instance tells its own
    speed_dead_band: float = 0.10  #: deviation from the pool's mean speed that counts as none
    avoid_unknown: bool = False  #: instances without a known load are avoided, not estimated
    limits: Limits = NO_LIMITS


class Pool:
    """One pool: how its instances are scored, what their requests are like, and where they sit."""

    def __init__(self, config: PoolConfig | None, scoring: Scoring, tick_s: float) -> None:
        self._config = config
        self._start_values = (scoring.token_aware.prompt_tokens, scoring.token_aware.generated_tokens)
        self.mode: ScoreMode = score_mode(scoring, tick_s=tick_s)
        self.rules = Rules(
            nominal_kv_capacity=scoring.token_aware.nominal_kv_capacity,
            speed_dead_band=scoring.token_aware.speed_dead_band,
            avoid_unknown=scoring.unknown == "avoid",
            limits=Limits(scoring.overload_waiting, scoring.overload_kv),
        )
        self.means = Means(*self._start_values)
        #: Its slots at the last tick.
        self.at: Selection = slice(0, 0)
        #: The largest weight in it: the shares of the others are relative to that.
        self.heaviest = 1.0

    @cached_property
    def tags(self) -> frozenset[tuple[str, str]]:
        """By which its instances are known; empty for the one that has the rest."""
        return frozenset(self._config.tags.items() if self._config else ())

    @cached_property
    def text(self) -> str:
        """Its tags as they are written, in order of their keys; empty for the one that has the rest."""
        return "+".join(f"{key}={value}" for key, value in sorted(self.tags))

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Whether an instance with ``tags`` belongs here, unless a pool before took it."""
        return self._config is None or self._config.matches(tags)

    def follow(self, former: Pool) -> None:
        """Go on from what ``former`` knows, the same pool under an earlier configuration."""
        self.heaviest = former.heaviest
        if self._start_values == former._start_values:
            self.means = former.means

    def prices(self, kv_capacity: float | None, weight: float) -> Prices:
        """What a dispatch to an instance of that weight adds to a lane cell, in units; see :attr:`Pools.share`.

        Bounded: for long prompts at a light instance too little, until the next tick makes its score exact.
        """
        prices, share = self.mode.prices(kv_capacity), weight / self.heaviest
        return Prices(prices.request / share, prices.prompt_token / share, prices.kv_token / share).bounded()


class Pools:
    """The pools of one table and who is in which. Only the monitor's event loop touches it."""

    def __init__(self, capacity: int, config: MonitorConfig) -> None:
        self._pools = pools_of(config)
        self._members: dict[int, tuple[Mapping[str, str], float]] = {}
        self._pool_of = np.full(capacity, len(self._pools) - 1, dtype=np.intp)
        #: By what scores and prices are divided, per slot: the weight over the pool's largest, at most 1. So equal
        #: weights change nothing, and a request never costs less than one, whatever scale the weights are in.
        self.share: NDArray[np.float64] = np.ones(capacity)
        self._present: Sequence[Pool] = ()
        self._n = 0  #: slots in use at the last tick
        self._moved = True  #: since pools were told their slots

    def configure(self, pools: list[Pool]) -> None:
        """Go by another configuration, that of which ``pools`` were made and which nobody else uses."""
        former = {pool.tags: pool for pool in self._pools}
        for pool in pools:
            if pool.tags in former:
                pool.follow(former[pool.tags])
        self._pools, self._moved = pools, True
        self._pool_of[:] = len(pools) - 1
        for slot, (tags, weight) in self._members.items():
            self._place(slot, tags, weight)

    def weigh(self, instances: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """These are the tags and weights of all instances from now on, admitted or not yet."""
        weights: dict[int, list[float]] = {}
        for tags, weight in instances:
            weights.setdefault(self._index(tags), []).append(weight)
        for index, pool in enumerate(self._pools):
            pool.heaviest = max(weights.get(index, (1.0,)))
        for slot, (tags, weight) in self._members.items():
            self._place(slot, tags, weight)

    def place(self, slot: int, tags: Mapping[str, str], weight: float) -> Pool:
        """``slot`` has an instance with these tags and this weight; the pool it joins, as it was before."""
        if self._moved:
            self._arrange(self._n)
        self._members[slot] = (tags, weight)
        return self._place(slot, tags, weight)

    def remove(self, slot: int) -> None:
        """The instance in ``slot`` is gone."""
        self._members.pop(slot, None)
        self._pool_of[slot] = len(self._pools) - 1
        self.share[slot] = 1.0
        self._moved = True

    def of(self, tags: Mapping[str, str]) -> Pool:
        """The pool of an instance with ``tags``: the first that matches."""
        return self._pools[self._index(tags)]

    def at(self, slot: int) -> Pool:
        """The pool of ``slot``."""
        return self._pools[int(self._pool_of[slot])]

    def present(self, n: int) -> Sequence[Pool]:
        """The pools that have any of the first ``n`` slots; together they have all, each one once."""
        if self._moved or n != self._n:
            self._arrange(n)
        return self._present

    def _index(self, tags: Mapping[str, str]) -> int:
        return next(index for index, pool in enumerate(self._pools) if pool.matches(tags))

    def _place(self, slot: int, tags: Mapping[str, str], weight: float) -> Pool:
        index = self._index(tags)
        pool = self._pools[index]
        self._pool_of[slot] = index
        self.share[slot] = weight / pool.heaviest
        self._moved = True
        return pool

    def _arrange(self, n: int) -> None:
        *tagged, rest = self._pools
        if not tagged:
            rest.at = slice(0, n)
            self._present = (rest,)
        else:
            slots = [np.flatnonzero(self._pool_of[:n] == index) for index in range(len(self._pools))]
            for pool, at in zip(self._pools, slots, strict=True):
                pool.at = at
            self._present = [pool for pool, at in zip(self._pools, slots, strict=True) if len(at)] or [rest]
        self._n, self._moved = n, False


def joined(parts: Sequence[tuple[Pool, Loads]], n: int) -> Loads:
    """The loads of all ``n`` slots, put together from those of all pools."""
    if len(parts) == 1:
        return parts[0][1]
    whole = {}
    for field in fields(Loads):
        rows = [(pool.at, getattr(loads, field.name)) for pool, loads in parts]
        whole[field.name] = row = np.empty(n, dtype=rows[0][1].dtype)
        for at, values in rows:
            row[at] = values
    return Loads(**whole)


def pools_of(config: MonitorConfig) -> list[Pool]:
    """The pools of that configuration, without instances. May take long: a score mode may be another package's.

    Raises what :func:`monitor.scores.score_mode` raises.
    """
    tagged = [Pool(pool, pool.over(config), config.tick) for pool in config.pools]
    return [*tagged, Pool(None, config, config.tick)]
