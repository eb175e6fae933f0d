"""Filters of documents: short, odd, repetitive and copied ones are dropped.

Worker processes judge each document alone (`make_judge`, a pure function of the
text). The main process finds the copies, in the order of the input
(`judge_documents`). The judgements are rows of a file in the unfinished folder,
so that an interrupted pass goes on where it was, and the steps after it can
read the text as often as they need. `docs/corpus.md` has published values.
"""

import collections
import contextlib
import functools
import itertools
import os
import re
import sys
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.corpus import sources, tokenize, writer
from bert_jax.files import open_no_follow
from bert_jax.messages import UserError, note

FORMS = ("NFC", "NFKC")
# The filters that drop documents, in the order in which they are applied; a
# document counts for the first that drops it. Row k of `verdict` is filter
# k - 1 of these; 0 is kept.
DROPPING = (
  "min_words",
  "max_symbols",
  "max_repetition",
  "drop_duplicates",
  "near_duplicates",
)
# Words of a shingle, as OpenWebText's near-duplicates were found (Gokaslan and
# Cohen 2019), and the shortest of the repeated n-grams that Gopher's rules
# count whole (Rae et al. 2021, table A1).
NGRAM = 5
# Values of a MinHash sketch: an estimate of a similarity of 0.8 is off by
# sqrt(0.8 * 0.2 / 128) = 0.035 in the mean.
SKETCH = 128
# Above it datasketch cuts no bands of a sketch: all 128 values would be one.
MAX_SIMILARITY = 0.99
# Shingles hashed at once: temporaries of 4 MB.
_CHUNK = 8192
_WORD = re.compile(r"\w+")
_SPACED = re.compile(r"\S+")
# Characters that are normalised at once.
_BLOCK = 2**16
# The file of judgements in the unfinished folder.
ROWS = "filters.rows"
# How missed pairs and candidates in vain weigh when the sketch is cut into
# bands. The vain ones only cost time, since all are compared. At a threshold
# of 0.8: 14 bands of 9, which find a pair with similarity 0.8 with probability
# 0.87, with 0.85 0.97, with 0.9 0.999.
_WEIGHTS = (0.1, 0.9)
_EXACT, _NEAR = (
  DROPPING.index(name) + 1 for name in ("drop_duplicates", "near_duplicates")
)


class Filters(NamedTuple):
  """The filters in use; None (or False) leaves one out.

  Attributes:
    normalise: Unicode form, of `FORMS`; the text is changed, nothing dropped.
    min_words: fewest words (between white space) of a document.
    max_symbols: largest `symbol_share`.
    max_repetition: largest `repetition`.
    drop_duplicates: True drops a document that equals an earlier one except for
      white space.
    near_duplicates: similarity to an earlier, kept document (Jaccard index of
      their sets of word 5-grams, see `shingles`) from which one is dropped;
      at most `MAX_SIMILARITY`.
  """

  normalise: str | None = None
  min_words: int | None = None
  max_symbols: float | None = None
  max_repetition: float | None = None
  drop_duplicates: bool | None = None
  near_duplicates: float | None = None

  def used(self) -> dict[str, Any]:
    """Returns the filters in use with their values; empty for none."""
    items = self._asdict().items()
    return {k: v for k, v in items if v is not None and v is not False}

  def check(self) -> None:
    """Raises UserError for a bad value or a missing package."""
    if self.normalise not in (None, *FORMS):
      raise UserError(
        f"--normalise={self.normalise} is none of {', '.join(FORMS)}."
      )
    if self.min_words is not None and self.min_words < 1:
      raise UserError(f"--min-words={self.min_words} is less than one.")
    for name in ("max_symbols", "max_repetition"):
      share = getattr(self, name)
      if share is not None and not 0 <= share < 1:
        flag = name.replace("_", "-")
        raise UserError(f"--{flag}={share} is not a share, from 0 to below 1.")
    if self.near_duplicates is not None:
      if not 0 < self.near_duplicates <= MAX_SIMILARITY:
        raise UserError(
          f"--near-duplicates={self.near_duplicates} is no similarity above 0"
          f" and at most {MAX_SIMILARITY}; --drop-duplicates finds copies."
        )
      empty_sketch()


def normalised(record: sources.Record, form: str | None) -> sources.Record:
  """Returns the record with its text in a Unicode form; lines stay lines."""
  if form is None:
    return record
  return record._replace(text=normalise(record.text, form))


def normalise(text: str, form: str) -> str:
  """Returns `unicodedata.normalize(form, text)`, made block by block.

  The library's work space is four times the result, and NFKC makes up to 18
  characters of one.
  """
  parts, start = [], 0
  while start < len(text):
    end = min(start + _BLOCK, len(text))
    while end < len(text) and not _begins_anew(text[end], form):
      end += 1
    parts.append(unicodedata.normalize(form, text[start:end]))
    start = end
  return "".join(parts)


def _begins_anew(character: str, form: str) -> bool:
  """Returns True if nothing before a character can change with it."""
  if character.isascii():
    return True
  # NFD of NFC, NFKD of NFKC.
  first = unicodedata.normalize(form.replace("C", "D"), character)[0]
  return not unicodedata.combining(first) and first not in _composing()


@functools.cache
def _composing() -> frozenset[str]:
  """Characters that are put together with one before them; some 130."""
  # A syllable of Korean is its first letter with a vowel and a last letter.
  letters = {
    chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
  }
  for code in range(sys.maxunicode + 1):
    parts = unicodedata.decomposition(chr(code)).split()
    if len(parts) == 2 and not parts[0].startswith("<"):
      letters.add(chr(int(parts[1], 16)))
  return frozenset(letters)


def count_words(text: str) -> int:
  """Returns `len(text.split())` without a list of the words."""
  return sum(1 for _ in _SPACED.finditer(text))


def symbol_share(text: str) -> float:
  """Returns the share of characters that are symbols.

  Those are neither letters with their marks, nor digits, punctuation or white
  space: currency and arithmetic signs, `|`, emoji, U+FFFD, control and private
  characters.
  """
  symbols = sum(
    count
    for c, count in collections.Counter(text).items()
    if unicodedata.category(c)[0] not in "LMNPZ" and not c.isspace()
  )
  return symbols / max(len(text), 1)


def words_of(text: str) -> list[str]:
  """Returns lower-cased runs of letters and digits."""
  return _WORD.findall(text.lower())


def shingles(words: Sequence[str]) -> np.ndarray:
  """Returns [N - 4] uint64, a hash of every 5 consecutive words of N.

  Fewer than 5 words are one shingle, no words are none. The hashes are the
  same in every process and on every machine.
  """
  codes = [zlib.crc32(word.encode("utf-8")) for word in words]
  n = min(NGRAM, len(words))
  columns = hashing.bits(0, np.array(codes, np.uint64)[:, None], np.arange(n))
  total = np.zeros(len(words) - n + 1 if n else 0, np.uint64)
  for i in range(n):
    total += columns[i : i + len(total), i]
  return total


def repetition(words: Sequence[str], grams: np.ndarray) -> float:
  """Returns the share of characters in words of repeated 5-grams.

  A word counts once if any 5-gram that it is in occurred earlier in the
  document; the first occurrence does not count.

  Args:
    words: the words, from `words_of`.
    grams: their `shingles`.
  """
  if len(words) <= NGRAM:
    return 0.0
  repeated = np.ones(len(grams), bool)
  repeated[np.unique(grams, return_index=True)[1]] = False
  covered = np.zeros(len(words), bool)
  for i in range(NGRAM):
    covered[i : i + len(grams)] |= repeated
  lengths = np.array([len(word) for word in words])
  return float(lengths[covered].sum() / lengths.sum())


def digest(text: str) -> int:
  """Returns 64 bits of the words, alike for copies that differ in spaces."""
  return hashing.text_hash(sources.single_spaces(text))


def empty_sketch() -> Any:
  """Returns datasketch's MinHash of nothing, to be copied.

  Raises:
    UserError: the package is not installed.
  """
  try:
    import datasketch
  except ImportError as e:
    raise UserError(
      "--near-duplicates needs the package datasketch; run"
      " `pip install 'bert_jax[data]'`."
    ) from e
  # The shingles are hashed already.
  return datasketch.MinHash(num_perm=SKETCH, hashfunc=int)


def sketch(empty: Any, grams: np.ndarray) -> np.ndarray:
  """Returns [SKETCH] uint32, the MinHash of a document.

  Args:
    empty: an empty sketch, from `empty_sketch`.
    grams: its `shingles`.
  """
  result = empty.copy()
  hashes = (grams >> np.uint64(32)).tolist()
  for i in range(0, len(hashes), _CHUNK):
    result.update_batch(hashes[i : i + _CHUNK])
  return result.hashvalues


def row_type(filters: Filters) -> np.dtype:
  """Returns the type of what is known of one document.

  Fields: `verdict` (see `DROPPING`), `words`, `changed` by normalisation,
  `digest`, `sketch`; the last two are there if their filter is.
  """
  fields: list[tuple] = [("verdict", "u1"), ("changed", "u1"), ("words", "<u4")]
  if filters.drop_duplicates:
    fields.append(("digest", "<u8"))
  if filters.near_duplicates is not None:
    fields.append(("sketch", "<u4", SKETCH))
  return np.dtype(fields)


def make_judge(
  filters: Filters,
) -> Callable[[list[sources.Record]], tuple[np.ndarray, float]]:
  """Returns the function from a batch of records to (rows, share read).

  The rows, `row_type`, know nothing of other documents: they still are kept
  if only those can tell.
  """
  dtype = row_type(filters)
  empty = None if filters.near_duplicates is None else empty_sketch()

  def judge(batch: list[sources.Record]) -> tuple[np.ndarray, float]:
    rows = np.zeros(len(batch), dtype)
    for row, record in zip(rows, batch, strict=True):
      text = normalised(record, filters.normalise).text
      row["changed"] = text != record.text
      row["words"] = count_words(text)
      verdict, grams = _alone(filters, text, int(row["words"]))
      row["verdict"] = verdict
      if not verdict and filters.drop_duplicates:
        row["digest"] = digest(text)
      if not verdict and empty is not None:
        row["sketch"] = sketch(empty, grams)
    return rows, batch[-1].share

  return judge


def _alone(
  filters: Filters, text: str, count: int
) -> tuple[int, np.ndarray | None]:
  """Returns the verdict on one document alone, and shingles if it is kept."""
  if filters.min_words is not None and count < filters.min_words:
    return 1, None
  limit = filters.max_symbols
  if limit is not None and symbol_share(text) > limit:
    return 2, None
  limit = filters.max_repetition
  if limit is None and filters.near_duplicates is None:
    return 0, None
  words = words_of(text)
  grams = shingles(words)
  if limit is not None and repetition(words, grams) > limit:
    return 3, None
  return 0, grams


class _Earlier:
  """Remembers earlier documents, to find copies of them.

  Measured: 100 bytes a document for exact copies; for near ones 11 KB a kept
  document at a threshold of 0.5, 7.5 KB at 0.7, 5.6 KB at 0.8, 3.8 KB at 0.9.
  """

  def __init__(self, chosen: Filters):
    self._chosen = chosen
    self._digests: set[int] = set()
    self._sketches: list[np.ndarray] = []
    if chosen.near_duplicates is not None:
      import datasketch

      self._empty = empty_sketch()
      self._index = datasketch.MinHashLSH(
        chosen.near_duplicates, SKETCH, _WEIGHTS
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


def judge_documents(
  partial: str,
  chosen: Filters,
  found_sources: Sequence[sources.Source],
  progress: dict[str, Any],
  processes: int,
  save_seconds: float,
) -> None:
  """Judges every document; goes on where an earlier call was interrupted.

  Args:
    partial: the unfinished folder, which gets the file `ROWS`.
    chosen: the filters; without any, nothing is done.
    found_sources: the inputs, from `sources.find_sources`.
    progress: the progress of the folder; it gets `judged`, the number of rows
      that are safe, and `all_judged`.
    processes: worker processes.
    save_seconds: time between saves.

  Raises:
    UserError: from `sources.read_records`, or no document is kept.
  """
  if not chosen.used():
    return
  if not progress.get("all_judged"):
    _judge(partial, chosen, found_sources, progress, processes, save_seconds)
    progress["all_judged"] = True
    writer.write_progress(partial, progress)
  counts = filter_report(partial, chosen)["filtered"]
  if counts["read"]["documents"] and not counts["kept"]["documents"]:
    most = max(counts["dropped"].items(), key=lambda x: x[1]["documents"])[0]
    raise UserError(
      f"the filters drop all {counts['read']['documents']:,} documents, most"
      f" by --{most.replace('_', '-')}={chosen.used()[most]}; loosen it."
    )


def _judge(
  partial: str,
  chosen: Filters,
  found_sources: Sequence[sources.Source],
  progress: dict[str, Any],
  processes: int,
  save_seconds: float,
) -> None:
  """Writes the rows; what `progress` calls judged is not judged again."""
  dtype = row_type(chosen)
  earlier = _Earlier(chosen)
  path = os.path.join(partial, ROWS)
  count = progress.get("judged", 0)
  with open_no_follow(path) as file:
    if file.seek(0, os.SEEK_END) < count * dtype.itemsize:
      raise OSError(f"{path} is damaged; delete {partial}.")
    file.seek(count * dtype.itemsize)
    file.truncate()
    if count:
      note(f"filters: going on after {count:,} documents")
    for row in _rows(partial, chosen):
      earlier.restore(row)
    records = itertools.islice(sources.read_records(found_sources), count, None)
    results = tokenize.ordered_map(
      make_judge, (chosen,), tokenize.batches(records), processes
    )
    saved = time.monotonic()

    def save() -> None:
      file.flush()
      os.fsync(file.fileno())
      progress["judged"] = count
      writer.write_progress(partial, progress)

    with contextlib.closing(results):
      for rows, share in results:
        for row in rows:
          if not row["verdict"]:
            row["verdict"] = earlier.judge(row)
        file.write(rows.tobytes())
        count += len(rows)
        if time.monotonic() >= saved + save_seconds:
          save()
          note(f"filters: {count:,} documents, {share:.0%}")
          saved = time.monotonic()
    save()


def _rows(partial: str, chosen: Filters) -> np.ndarray:
  path = os.path.join(partial, ROWS)
  dtype = row_type(chosen)
  if not os.path.getsize(path):
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, "r")


def kept_records(
  partial: str, chosen: Filters, records: Iterator[sources.Record]
) -> Iterator[sources.Record]:
  """Yields the kept records, normalised; without filters all of them."""
  if not chosen.used():
    yield from records
    return
  verdicts = _rows(partial, chosen)["verdict"]
  count = 0
  for count, record in enumerate(records, 1):  # noqa: B007
    if count <= len(verdicts) and not verdicts[count - 1]:
      yield normalised(record, chosen.normalise)
  if count != len(verdicts):
    raise UserError(
      f"the input had {len(verdicts):,} documents and now has {count:,}: it was"
      " changed meanwhile. Give the same command again."
    )


def filter_report(partial: str, chosen: Filters) -> dict[str, Any]:
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


def report_lines(report: dict[str, Any]) -> Iterator[str]:
  """Yields lines that show the result of `filter_report`, if there is one."""
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


def delete_rows(path: str) -> None:
  """Deletes the rows of a folder that is complete."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(path, ROWS))
