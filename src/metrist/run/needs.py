"""A metric that an input cannot serve is refused before anything is scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from metrist.errors import NeedsError
from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.run.cutting import MOST_TEXT, characters
from metrist.run.executors.scoring import lack

#: Records that are looked at for one that serves a metric; fewer where their texts pass `MOST_TEXT` characters. Neither
#: depends on the size of shards, so the same input is refused or scored whatever that is.
LOOK_AHEAD = 10_000


def served(metrics: Iterable[Metric], records: Iterable[Record]) -> Iterator[Record]:
    """The same records. A metric that none of the first ones serves is refused; mostly a look at one record settles it,
    and no more are held than were looked at."""
    coming, looked_at, text = iter(records), list[Record](), 0
    unserved = [metric for metric in metrics if metric.needs]
    while unserved and len(looked_at) < LOOK_AHEAD and text <= MOST_TEXT and (record := next(coming, None)):
        looked_at.append(record)
        text += characters(record)
        unserved = [metric for metric in unserved if lack(metric, record)]
    if unserved and looked_at:
        why = f"none of the first {len(looked_at):,} records can be scored by it"
        raise NeedsError(f"{lack(unserved[0], looked_at[0])}; {why}")
    return chain(looked_at, coming)
