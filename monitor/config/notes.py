"""What a configuration is allowed to say but probably does not mean: notes, never faults."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from monitor.config.joint import MonitorConfig
from monitor.config.problems import Problem
from monitor.config.score_sections import OWN_MODES

# Ends of addresses that people copy from elsewhere, and why the base URL should not have them.
_COPIED = {
    "metrics": "the monitor adds the paths of its polls itself",
    "v1": "the paths of requests begin with /v1 themselves",
}


def notes(config: MonitorConfig) -> Iterator[Problem]:
    """One note per thing that looks like a mistake."""
    if config.score_options and {config.score, *(pool.score for pool in config.pools)} <= set(OWN_MODES):
        yield Problem(
            "score_options",
            f"only installed score modes read them, and {config.score} is one of the monitor's own, whose "
            f"options are in [{config.score}]: remove [score_options]",
        )
    yield from _pools(config)
    first: dict[str, int] = {}
    for index, instance in enumerate(config.instances):
        other = first.setdefault(instance.url, index)
        if other != index:
            yield Problem(
                f"instances[{index}].url",
                f"{instance.url!r} is the url of instances[{other}] too: if it is one server, "
                "its load counts twice; remove one of them",
            )
        for key in ("url", "metrics_url"):
            url = getattr(instance, key)
            last = urlsplit(url or "").path.rpartition("/")[2]
            if last in _COPIED:
                yield Problem(
                    f"instances[{index}].{key}",
                    f"{url!r} ends in /{last}, but {_COPIED[last]}: remove it unless the server really "
                    "has it in front of all its paths",
                )


def _pools(config: MonitorConfig) -> Iterator[Problem]:
    for place, pool in enumerate(config.pools):
        wider = next((at for at, other in enumerate(config.pools[:place]) if other.matches(pool.tags)), None)
        if wider is not None:
            yield Problem(
                f"pools[{place}].tags",
                f"pools[{wider}] matches every instance that has them, and the first that matches counts: "
                "put the one with more tags first",
            )
        elif all(config.pool_of(instance) != place for instance in config.instances):
            yield Problem(f"pools[{place}].tags", "no instance has them: its options are of no use")
