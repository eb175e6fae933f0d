"""Goes over a corpus once and says which documents the filters keep.

Worker processes judge the documents alone (`filters.make_judge`), this process
finds the copies, in the order of the input. The rows are in a file of the
unfinished folder, so that an interrupted pass goes on where it was, and what
follows can read the text as often as it likes.
"""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus import filters, sources
from bert_jax.corpus import tokenize as workers
from bert_jax.corpus import tokenize_tokenize as tokenize
from bert_jax.corpus import writer as folder
from bert_jax.corpus.filters import DROPPING, Filters
from bert_jax.files import open_own

ROWS = "filters.rows"
# How missed pairs and candidates in vain weigh when the sketch is cut into
# bands. The vain ones only cost time, since all are compared. At a threshold
# of 0.8: 14 bands of 9, which find a pair with similarity 0.8 with probability
# 0.87, with 0.85 0.97, with 0.9 0.999.
_WEIGHTS = (0.1, 0.9)
_EXACT, _NEAR = (
  DROPPING.index(name) + 1 for name in ("drop_duplicates", "near_duplicates")
)


class _Earlier:
  """What is remembered of earlier documents.

  Measured: 100 bytes a document for exact copies; for near ones 11 KB a kept
  document at a threshold of 0.5, 7.5 KB at 0.7, 5.6 KB at 0.8, 3.8 KB at 0.9.
  """

  def __init__(self, chosen: Filters):
    self._chosen = chosen
    self._digests: set[int] = set()
    self._sketches: list[np.ndarray] = []
    if chosen.near_duplicates is not None:
      import datasketch

      self._empty = filters.empty_sketch()
      self._index = datasketch.MinHashLSH(
        chosen.near_duplicates, filters.SKETCH, _WEIGHTS
      )

  def judge(self, row: np.void) -> int:
    """Returns the verdict of a row that has none yet, and remembers it."""
    if self._chosen.drop_duplicates:
      digest = int(row["digest"])
      if digest in self._digests:
        return _EXACT
      self._digests.add(digest)
    if self._chosen.near_duplicates is not None:
      sketch = self._empty.copy()
      # A copy, or the whole batch would stay in memory.
      sketch.hashvalues = row["sketch"].copy()
      if not sketch.is_empty():
        if self._is_near(sketch):
          return _NEAR
        self._remember(sketch)
    return 0

  def restore(self, row: np.void) -> None:
    """Remembers a row that was judged before."""
    verdict = int(row["verdict"])
    if self._chosen.drop_duplicates and verdict in (0, _NEAR):
      self._digests.add(int(row["digest"]))
    if self._chosen.near_duplicates is not None and verdict == 0:
      sketch = self._empty.copy()
      sketch.hashvalues = row["sketch"].copy()
      if not sketch.is_empty():
        self._remember(sketch)

  def _is_near(self, sketch: Any) -> bool:
    return any(
      np.mean(self._sketches[k] == sketch.hashvalues)
      >= self._chosen.near_duplicates
      for k in self._index.query(sketch)
    )

  def _remember(self, sketch: Any) -> None:
    self._index.insert(len(self._sketches), sketch)
    self._sketches.append(sketch.hashvalues)


def run(
  partial: str,
  chosen: Filters,
  found: Sequence[sources.Source],
  progress: dict[str, Any],
  processes: int,
  save_seconds: float,
) -> None:
  """Judges every document; goes on where an earlier call was interrupted.

  Args:
    partial: the unfinished folder, which gets the file `ROWS`.
    chosen: the filters; without any, nothing is done.
    found: what to read.
    progress: of the folder; `judged` (rows that are safe) and `all_judged`
      are kept in it.
    processes: worker processes.
    save_seconds: time between saves.

  Raises:
    ValueError: from `sources.read_records`, or no document is kept.
  """
  if not chosen.used():
    return
  if not progress.get("all_judged"):
    _judge(partial, chosen, found, progress, processes, save_seconds)
    progress["all_judged"] = True
    folder.write_progress(partial, progress)
  counts = report(partial, chosen)["filtered"]
  if counts["read"]["documents"] and not counts["kept"]["documents"]:
    most = max(counts["dropped"].items(), key=lambda x: x[1]["documents"])[0]
    raise ValueError(
      f"the filters drop all {counts['read']['documents']:,} documents, most"
      f" by --{most}={chosen.used()[most]}; loosen it."
    )


def _judge(
  partial: str,
  chosen: Filters,
  found: Sequence[sources.Source],
  progress: dict[str, Any],
  processes: int,
  save_seconds: float,
) -> None:
  """Writes the rows; what `progress` calls judged is not judged again."""
  dtype = filters.row_type(chosen)
  earlier = _Earlier(chosen)
  path = os.path.join(partial, ROWS)
  count = progress.get("judged", 0)
  with os.fdopen(open_own(path), "r+b") as file:
    if file.seek(0, os.SEEK_END) < count * dtype.itemsize:
      raise OSError(f"{path} is damaged; delete {partial}")
    file.seek(count * dtype.itemsize)
    file.truncate()
    if count:
      _log(f"filters: going on after {count:,} documents")
    for row in _rows(partial, chosen):
      earlier.restore(row)
    records = itertools.islice(sources.read_records(found), count, None)
    results = workers.ordered_map(
      filters.make_judge, (chosen,), tokenize.batches(records), processes
    )
    saved = time.monotonic()

    def save() -> None:
      file.flush()
      os.fsync(file.fileno())
      progress["judged"] = count
      folder.write_progress(partial, progress)

    with contextlib.closing(results):
      for rows, share in results:
        for row in rows:
          if not row["verdict"]:
            row["verdict"] = earlier.judge(row)
        file.write(rows.tobytes())
        count += len(rows)
        if time.monotonic() >= saved + save_seconds:
          save()
          _log(f"filters: {count:,} documents, {share:.0%}")
          saved = time.monotonic()
    save()


def _rows(partial: str, chosen: Filters) -> np.ndarray:
  path = os.path.join(partial, ROWS)
  dtype = filters.row_type(chosen)
  if not os.path.getsize(path):
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, "r")


def kept(
  partial: str, chosen: Filters, records: Iterator[sources.Record]
) -> Iterator[sources.Record]:
  """Yields the records that `run` kept, normalised; all without filters."""
  if not chosen.used():
    yield from records
    return
  verdicts = _rows(partial, chosen)["verdict"]
  count = 0
  for count, record in enumerate(records, 1):  # noqa: B007
    if count <= len(verdicts) and not verdicts[count - 1]:
      yield filters.normalised(record, chosen.normalise)
  if count != len(verdicts):
    raise ValueError(
      f"the input had {len(verdicts):,} documents and now has {count:,}: it was"
      " changed meanwhile. Give the same command again."
    )


def report(partial: str, chosen: Filters) -> dict[str, Any]:
  """Returns `{"filtered": counts}` for `meta.json`; empty without filters.

  Documents and words (between white space) that were read, kept, and dropped
  by each filter; documents that normalisation changed.
  """
  used = chosen.used()
  if not used:
    return {}
  rows = _rows(partial, chosen)
  size = len(DROPPING) + 1
  documents = np.bincount(rows["verdict"], minlength=size)
  # Sums of doubles are exact up to 2**53 words.
  words = np.bincount(rows["verdict"], rows["words"], minlength=size)

  def counts(k: int | slice) -> dict[str, int]:
    return {
      "documents": int(np.sum(documents[k])),
      "words": int(np.sum(words[k])),
    }

  filtered = {
    "read": counts(slice(None)),
    "kept": counts(0),
    "dropped": {
      name: counts(k) for k, name in enumerate(DROPPING, 1) if name in used
    },
  }
  if chosen.normalise:
    filtered["normalised"] = {"documents": int(rows["changed"].sum())}
  return {"filtered": filtered}


def lines(report: dict[str, Any]) -> Iterator[str]:
  """Yields what `report` returned, for people; nothing without filters."""
  if not report:
    return

  def size(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in counts.items())

  filtered = report["filtered"]
  yield f"filters: {size(filtered['read'])} read"
  if "normalised" in filtered:
    yield f"  normalise: {size(filtered['normalised'])} changed"
  for name, counts in filtered["dropped"].items():
    yield f"  {name}: {size(counts)} dropped"
  yield f"  kept: {size(filtered['kept'])}"


def clear(path: str) -> None:
  """Deletes the rows of a folder that is complete."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(path, ROWS))


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
