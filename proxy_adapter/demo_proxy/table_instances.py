"""Instances read from the table itself: nobody has to name them twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from proxy_adapter.demo_proxy.instances import Instance, make_instance
from score_table.reader import TableReader

logger = logging.getLogger("loadboard.proxy_adapter")

_REFRESH_S = 1.0

#: Gives (id, url) of every instance in the table at a location; raises where it cannot be read.
ReadNames = Callable[[str], Iterable[tuple[str, str]]]


def names_in_table(location: str) -> list[tuple[str, str]]:
    """(id, url) of the instances in the table. Opened anew each time, so a newer segment is never missed."""
    with TableReader.open(location) as reader:
        return [(identity.id, identity.url) for identity in reader.identities()]


class TableInstances:
    """The instances of the table, looked at about each second.

    Without a readable table the last ones known stay: what the table says of *load* is the strategy's business, and
    a monitor that is being restarted is no reason to refuse requests.
    """

    def __init__(
        self, location: str, read: ReadNames = names_in_table, refresh_s: float = _REFRESH_S
    ) -> None:
        self._location = location
        self._read = read
        self._refresh_s = refresh_s
        self._instances: tuple[Instance, ...] = ()
        self._names: list[tuple[str, str]] | None = None
        self._said = ""

    def current(self) -> tuple[Instance, ...]:
        return self._instances

    async def run(self) -> None:
        while True:
            try:
                names = list(await asyncio.to_thread(self._read, self._location))
                instances = self._instances if names == self._names else self._made(names)
            except Exception as error:
                # Not only TableError: whatever may be wrong with it now, the table is looked at again.
                reason = str(error) or type(error).__name__
                self._say(logging.WARNING, f"cannot read the instances from table {self._location}: {reason}")
            else:
                self._names, self._instances = names, instances
                ids = ", ".join(instance.instance_id for instance in instances) or "none"
                self._say(logging.INFO, f"instances from table {self._location}: {ids}")
            await asyncio.sleep(self._refresh_s)

    def _made(self, names: list[tuple[str, str]]) -> tuple[Instance, ...]:
        instances: list[Instance] = []
        for id_, url in names:
            try:
                instances.append(make_instance(url, id_))
            except ValueError as error:
                logger.warning("table %s: instance %r is left out: %s", self._location, id_, error)
        return tuple(instances)

    def _say(self, level: int, message: str) -> None:
        """Once per distinct state, not once per look."""
        if message != self._said:
            self._said = message
            logger.log(level, "%s", message)
