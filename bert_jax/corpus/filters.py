"""Drops documents that are short, full of symbols, repetitive, or copies.

Worker processes judge the text of each document (`make_judge`). The main
process finds the copies, in the order of the input (`judge_documents`). The
verdicts are written to a file in the unfinished folder. The file has an entry
of fixed size for each document; in this module, a row is such an entry, and not
a row of a batch. With the file, interrupted work can continue, and later steps
know the verdicts without judging again. `docs/corpus.md` lists published values
for the filters.
"""

import collections
import contextlib
import functools
import itertools
import os
import pathlib
import re
import sys
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from bert_jax import hashing
from bert_jax.corpus import sources, tokenize, writer
from bert_jax.files import open_unless_link, sync_file
from bert_jax.messages import UserError, note

# The normal forms of Unicode that a filter may ask for.
NormalForm = Literal["NFC", "NFKC"]
NORMAL_FORMS = ("NFC", "NFKC")
# The filters that drop documents, in the order in which they are applied. The
# verdict k means that the k-th of these filters, counted from 1, dropped the
# document. The verdict 0 means that the document is kept.
DROPPING_FILTERS = (
  "min_words",
  "max_symbols",
  "max_repetition",
  "drop_duplicates",
  "near_duplicates",
)
# The number of consecutive words in a shingle. Near-duplicates of OpenWebText
# were found with 5 words (Gokaslan and Cohen 2019). Gopher's rules count all
# repeated n-grams from n = 5 on (Rae et al. 2021, table A1).
SHINGLE_WORDS = 5
# The number of values in a MinHash sketch. The standard deviation of an
# estimate for a similarity of 0.8 is sqrt(0.8 * 0.2 / 128) = 0.035.
SKETCH_SIZE = 128
# The largest value of `near_duplicates`. For a larger value, datasketch would
# make a single band of all 128 values of a sketch.
MAX_SIMILARITY = 0.99
# The number of shingles that are hashed at once; temporary arrays have 4 MB.
_SHINGLES_AT_ONCE = 8192
_WORD_PATTERN = re.compile(r"\w+")
_NON_SPACES_PATTERN = re.compile(r"\S+")
# The number of characters that are normalized at once.
_BLOCK_CHARS = 2**16
# The file of verdicts in the unfinished folder.
VERDICTS_FILE = "filters.rows"
# datasketch cuts a sketch into bands. Two documents that agree in a whole band
# are candidates, and are compared. The numbers are the weights of wrong
# candidates and of missed pairs when datasketch chooses the bands. A wrong
# candidate costs only time. For a threshold of 0.8, it makes 14 bands of 9
# values:
#
#   similarity of a pair             0.8    0.85   0.9
#   probability of finding the pair  0.87   0.97   0.999
_ERROR_WEIGHTS = (0.1, 0.9)
# The verdicts on exact copies and on near-copies (see `DROPPING_FILTERS`).
_EXACT_COPY, _NEAR_COPY = (
  DROPPING_FILTERS.index(name) + 1
  for name in ("drop_duplicates", "near_duplicates")
)


class Filters(NamedTuple):
  """Holds the value of each filter; with None or False a filter is not used.

  Attributes:
    normalise: the normal form to which the text is changed, one of
      `NORMAL_FORMS`. This filter drops no documents.
    min_words: the smallest number of words (between white space) in a document.
    max_symbols: the largest `symbol_share` of a document.
    max_repetition: the largest `repetition_share` of a document.
    drop_duplicates: True to drop a document if an earlier document is equal
      except for white space.
    near_duplicates: a document is dropped if its similarity to an earlier kept
      document is at least this number, which is at most `MAX_SIMILARITY`. The
      similarity is the Jaccard index of the documents' sets of shingles.
  """

  normalise: str | None = None
  min_words: int | None = None
  max_symbols: float | None = None
  max_repetition: float | None = None
  drop_duplicates: bool | None = None
  near_duplicates: float | None = None

  def in_use(self) -> dict[str, Any]:
    """Returns name -> value of the filters in use."""
    settings = self._asdict().items()
    return {
      name: value
      for name, value in settings
      if value is not None and value is not False
    }

  def check(self) -> None:
    """Raises UserError if a value is bad or a package is missing."""
    if self.normalise not in (None, *NORMAL_FORMS):
      raise UserError(
        f"--normalise={self.normalise} is not one of {', '.join(NORMAL_FORMS)}."
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
          f"--near-duplicates={self.near_duplicates} is no similarity: it"
          f" must be above 0 and at most {MAX_SIMILARITY}. For exact copies,"
          " use --drop-duplicates."
        )
      empty_sketch()


def normalise_record(
  record: sources.Record, normal_form: str | None
) -> sources.Record:
  """Returns the record with normalized text.

  Args:
    record: a raw document.
    normal_form: one of `NORMAL_FORMS`; if it is None, the text does not change.
  """
  if normal_form is None:
    return record
  return record._replace(text=normalise_text(record.text, normal_form))


def normalise_text(text: str, normal_form: str) -> str:
  """Returns `unicodedata.normalize(normal_form, text)`, made block by block.

  The blocks limit memory: the library needs four times the size of its output,
  and NFKC makes up to 18 characters from one character.

  Args:
    text: any text.
    normal_form: one of `NORMAL_FORMS`.
  """
  form = cast(NormalForm, normal_form)
  blocks, start = [], 0
  while start < len(text):
    end = min(start + _BLOCK_CHARS, len(text))
    while end < len(text) and not _is_independent(text[end], form):
      end += 1
    blocks.append(unicodedata.normalize(form, text[start:end]))
    start = end
  return "".join(blocks)


def _is_independent(character: str, form: NormalForm) -> bool:
  """Returns True if `character` never combines with a character before it."""
  if character.isascii():
    return True
  first_character = unicodedata.normalize(
    "NFD" if form == "NFC" else "NFKD", character
  )[0]
  return (
    not unicodedata.combining(first_character)
    and first_character not in _composing_characters()
  )


@functools.cache
def _composing_characters() -> frozenset[str]:
  """Returns the characters that compose with the character before them.

  There are about 130.
  """
  # The vowels and final consonants of Korean compose to syllables.
  composing_characters = {
    chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
  }
  # In a decomposition into two characters, the second composes with the first.
  for code in range(sys.maxunicode + 1):
    code_points = unicodedata.decomposition(chr(code)).split()
    if len(code_points) == 2 and not code_points[0].startswith("<"):
      composing_characters.add(chr(int(code_points[1], 16)))
  return frozenset(composing_characters)


def count_words(text: str) -> int:
  """Returns `len(text.split())`, without the memory for a list of the words."""
  return sum(1 for _ in _NON_SPACES_PATTERN.finditer(text))


def symbol_share(text: str) -> float:
  """Returns the share of characters that are symbols.

  A symbol is no letter, mark, digit, punctuation sign or white space. Examples
  are currency and arithmetic signs, `|`, emoji, U+FFFD, control and private
  characters.
  """
  num_symbols = sum(
    count
    for character, count in collections.Counter(text).items()
    if unicodedata.category(character)[0] not in "LMNPZ"
    and not character.isspace()
  )
  return num_symbols / max(len(text), 1)


def lower_case_words(text: str) -> list[str]:
  """Returns a text's words in lower case.

  A word consists of letters, digits and underscores.
  """
  return _WORD_PATTERN.findall(text.lower())


def hash_shingles(words: Sequence[str]) -> np.ndarray:
  """Returns a hash of each shingle, which is 5 consecutive words.

  The hash of a shingle is equal in every process and on every machine.

  Args:
    words: N words.

  Returns:
    An array of uint64 [N - 4]. If there are 1 to 4 words, they are one shingle;
    without words, the array is empty.
  """
  # The hash of a shingle is the sum of a hash for each of its words, which
  # depends on the word and on its place in the shingle.
  word_codes = [zlib.crc32(word.encode("utf-8")) for word in words]
  num_shingle_words = min(SHINGLE_WORDS, len(words))
  word_hashes = hashing.bits(
    0, np.array(word_codes, np.uint64)[:, None], np.arange(num_shingle_words)
  )
  shingle_hashes = np.zeros(
    len(words) - num_shingle_words + 1 if num_shingle_words else 0, np.uint64
  )
  for i in range(num_shingle_words):
    shingle_hashes += word_hashes[i : i + len(shingle_hashes), i]
  return shingle_hashes


def repetition_share(words: Sequence[str], shingle_hashes: np.ndarray) -> float:
  """Returns the share of characters that are in repeated shingles.

  A shingle is repeated if it occurred earlier in the document. The characters
  of a word count, once, if a repeated shingle contains the word. White space
  does not count.

  Args:
    words: the words, from `lower_case_words`.
    shingle_hashes: the result of `hash_shingles` for these words.
  """
  if len(words) <= SHINGLE_WORDS:
    return 0.0
  # All shingles are repeated, except the first occurrence of each hash.
  is_repeated = np.ones(len(shingle_hashes), bool)
  is_repeated[np.unique(shingle_hashes, return_index=True)[1]] = False
  is_covered = np.zeros(len(words), bool)
  for i in range(SHINGLE_WORDS):
    is_covered[i : i + len(shingle_hashes)] |= is_repeated
  lengths = np.array([len(word) for word in words])
  return float(lengths[is_covered].sum() / lengths.sum())


def text_digest(text: str) -> int:
  """Returns a 64-bit hash that ignores how much white space a text has."""
  return hashing.text_hash(sources.with_single_spaces(text))


def empty_sketch() -> Any:
  """Returns datasketch's MinHash of no shingles, which callers copy.

  Raises:
    UserError: the package datasketch is not installed.
  """
  try:
    import datasketch
  except ImportError as e:
    raise UserError(
      "--near-duplicates needs the package datasketch; run"
      " `pip install 'bert_jax[data]'`."
    ) from e
  # `hashfunc` only returns an int, because the shingles are hashed already.
  return datasketch.MinHash(num_perm=SKETCH_SIZE, hashfunc=int)


def make_sketch(empty_minhash: Any, shingle_hashes: np.ndarray) -> np.ndarray:
  """Returns the MinHash of a document, an array of uint32 [SKETCH_SIZE].

  Args:
    empty_minhash: an empty sketch, from `empty_sketch`.
    shingle_hashes: the result of `hash_shingles` for the document.
  """
  minhash = empty_minhash.copy()
  # datasketch needs hashes of 32 bits.
  hashes = (shingle_hashes >> np.uint64(32)).tolist()
  for i in range(0, len(hashes), _SHINGLES_AT_ONCE):
    minhash.update_batch(hashes[i : i + _SHINGLES_AT_ONCE])
  return minhash.hashvalues


def verdict_dtype(filters: Filters) -> np.dtype:
  """Returns the type of a document's row in the file `VERDICTS_FILE`.

  The fields are `verdict` (see `DROPPING_FILTERS`); `changed`, 1 if
  normalization changed the text; the number of `words`; `digest`, for
  `drop_duplicates`; and `sketch`, for `near_duplicates`.
  """
  fields: list[tuple] = [("verdict", "u1"), ("changed", "u1"), ("words", "<u4")]
  if filters.drop_duplicates:
    fields.append(("digest", "<u8"))
  if filters.near_duplicates is not None:
    fields.append(("sketch", "<u4", SKETCH_SIZE))
  return np.dtype(fields)


def make_judge(
  filters: Filters,
) -> Callable[[list[sources.Record]], tuple[np.ndarray, float]]:
  """Returns a function that judges the text of each record of a batch.

  Returns:
    A function of records. It returns the records' rows (see
    `verdict_dtype`), and the share of the inputs that has been read. It does
    not look for copies, so copies have verdict 0.
  """
  dtype = verdict_dtype(filters)
  empty_minhash = None if filters.near_duplicates is None else empty_sketch()

  def judge(batch: list[sources.Record]) -> tuple[np.ndarray, float]:
    rows = np.zeros(len(batch), dtype)
    for row, record in zip(rows, batch, strict=True):
      text = normalise_record(record, filters.normalise).text
      row["changed"] = text != record.text
      row["words"] = count_words(text)
      verdict, shingle_hashes = _judge_text(filters, text, int(row["words"]))
      row["verdict"] = verdict
      if not verdict and filters.drop_duplicates:
        row["digest"] = text_digest(text)
      if empty_minhash is not None and shingle_hashes is not None:
        row["sketch"] = make_sketch(empty_minhash, shingle_hashes)
    return rows, batch[-1].share

  return judge


def _judge_text(
  filters: Filters, text: str, num_words: int
) -> tuple[int, np.ndarray | None]:
  """Returns the verdict on a text, and its shingles' hashes if they are needed.

  The verdicts 1, 2 and 3 are places in `DROPPING_FILTERS`. The verdict is 0 if
  none of these three filters drops the text.

  Args:
    filters: the filters in use.
    text: the document.
    num_words: the number of words in the document.
  """
  if filters.min_words is not None and num_words < filters.min_words:
    return 1, None
  max_symbols = filters.max_symbols
  if max_symbols is not None and symbol_share(text) > max_symbols:
    return 2, None
  max_repetition = filters.max_repetition
  if max_repetition is None and filters.near_duplicates is None:
    return 0, None
  words = lower_case_words(text)
  shingle_hashes = hash_shingles(words)
  if (
    max_repetition is not None
    and repetition_share(words, shingle_hashes) > max_repetition
  ):
    return 3, None
  return 0, shingle_hashes


class _EarlierDocuments:
  """Remembers earlier documents, to find copies of them.

  The search for exact copies takes 100 bytes of memory for each document. The
  search for near-copies takes this much for each kept document (measured):

    threshold   0.5     0.7      0.8      0.9
    memory      11 KB   7.5 KB   5.6 KB   3.8 KB
  """

  def __init__(self, filters: Filters):
    """Begins without documents; `filters` are the filters in use."""
    self._filters = filters
    self._digests: set[int] = set()
    self._sketches: list[np.ndarray] = []
    if filters.near_duplicates is not None:
      import datasketch

      self._empty = empty_sketch()
      self._index = datasketch.MinHashLSH(
        filters.near_duplicates, SKETCH_SIZE, _ERROR_WEIGHTS
      )

  def judge(self, row: np.void) -> int:
    """Returns the verdict on a document, and remembers the document.

    Args:
      row: the document's row. The row's verdict is 0, because no earlier filter
        dropped the document.
    """
    if self._filters.drop_duplicates:
      digest = int(row["digest"])
      if digest in self._digests:
        return _EXACT_COPY
      self._digests.add(digest)
    if self._filters.near_duplicates is not None:
      sketch = self._empty.copy()
      # Copy, because a view of `row` would keep its whole batch in memory.
      sketch.hashvalues = row["sketch"].copy()
      if not sketch.is_empty():
        if self._is_near_copy(sketch):
          return _NEAR_COPY
        self._remember(sketch)
    return 0

  def remember_judged(self, row: np.void) -> None:
    """Remembers a document that was judged before an interruption."""
    verdict = int(row["verdict"])
    if self._filters.drop_duplicates and verdict in (0, _NEAR_COPY):
      self._digests.add(int(row["digest"]))
    if self._filters.near_duplicates is not None and verdict == 0:
      sketch = self._empty.copy()
      sketch.hashvalues = row["sketch"].copy()
      if not sketch.is_empty():
        self._remember(sketch)

  def _is_near_copy(self, sketch: Any) -> bool:
    """Returns True if a document is similar enough to an earlier document."""
    threshold = self._filters.near_duplicates
    return any(
      np.mean(self._sketches[document_number] == sketch.hashvalues) >= threshold
      for document_number in self._index.query(sketch)
    )

  def _remember(self, sketch: Any) -> None:
    self._index.insert(len(self._sketches), sketch)
    self._sketches.append(sketch.hashvalues)


def judge_documents(job: writer.Job, filters: Filters) -> None:
  """Judges all documents that were not judged before an interruption.

  Args:
    job: the job's folder gets the file `VERDICTS_FILE`. The job's progress gets
      `judged`, the number of rows that are on the disk, and `all_judged`.
    filters: the filters; if there are none, nothing is done.

  Raises:
    UserError: the filters drop all documents; or see `sources.read_records`.
  """
  if not filters.in_use():
    return
  if not job.progress.get("all_judged"):
    _judge_remaining(job, filters)
    job.progress["all_judged"] = True
    writer.write_progress(job.partial_folder, job.progress)
  counts = filter_report(job.partial_folder, filters)["filtered"]
  if counts["read"]["documents"] and not counts["kept"]["documents"]:
    name = max(counts["dropped"].items(), key=lambda x: x[1]["documents"])[0]
    raise UserError(
      f"the filters drop all {counts['read']['documents']:,} documents, most"
      f" by --{name.replace('_', '-')}={filters.in_use()[name]}; loosen it."
    )


def _judge_remaining(job: writer.Job, filters: Filters) -> None:
  """Writes the rows of all documents that have no row yet."""
  dtype = verdict_dtype(filters)
  earlier_documents = _EarlierDocuments(filters)
  path = pathlib.Path(job.partial_folder, VERDICTS_FILE)
  num_judged = job.progress.get("judged", 0)
  with open_unless_link(path) as file:
    if file.seek(0, os.SEEK_END) < num_judged * dtype.itemsize:
      raise OSError(f"{path} is damaged; delete {job.partial_folder}.")
    file.seek(num_judged * dtype.itemsize)
    file.truncate()
    if num_judged:
      note(f"filters: going on after {num_judged:,} documents")
    for row in _read_rows(job.partial_folder, filters):
      earlier_documents.remember_judged(row)
    records = itertools.islice(
      sources.read_records(job.sources), num_judged, None
    )
    judged_batches = tokenize.ordered_map(
      make_judge, (filters,), tokenize.make_batches(records), job.processes
    )
    last_save = time.monotonic()

    def save() -> None:
      sync_file(file)
      job.progress["judged"] = num_judged
      writer.write_progress(job.partial_folder, job.progress)

    with contextlib.closing(judged_batches):
      for rows, share in judged_batches:
        for row in rows:
          if not row["verdict"]:
            row["verdict"] = earlier_documents.judge(row)
        file.write(rows.tobytes())
        num_judged += len(rows)
        if time.monotonic() >= last_save + job.save_seconds:
          save()
          note(f"filters: {num_judged:,} documents, {share:.0%}")
          last_save = time.monotonic()
    save()


def _read_rows(partial_folder: str, filters: Filters) -> np.ndarray:
  """Returns the rows in the file `VERDICTS_FILE` of an unfinished folder."""
  path = pathlib.Path(partial_folder, VERDICTS_FILE)
  dtype = verdict_dtype(filters)
  if not path.stat().st_size:
    return np.zeros(0, dtype)
  return np.memmap(path, dtype, "r")


def kept_records(
  partial_folder: str, filters: Filters, records: Iterator[sources.Record]
) -> Iterator[sources.Record]:
  """Yields the normalized records of kept documents.

  Args:
    partial_folder: the unfinished folder, with the verdicts of all documents.
    filters: the filters; if there are none, all records are kept.
    records: all records, in the order in which they were judged.

  Raises:
    UserError: the number of records differs from the number of verdicts.
  """
  if not filters.in_use():
    yield from records
    return
  verdicts = _read_rows(partial_folder, filters)["verdict"]
  record_number = 0
  for record_number, record in enumerate(records, 1):
    if record_number <= len(verdicts) and not verdicts[record_number - 1]:
      yield normalise_record(record, filters.normalise)
  if record_number != len(verdicts):
    raise UserError(
      f"the input had {len(verdicts):,} documents and now has"
      f" {record_number:,}: it was changed meanwhile. Give the same command"
      " again."
    )


def filter_report(partial_folder: str, filters: Filters) -> dict[str, Any]:
  """Returns `{"filtered": counts}` for `meta.json`; {} without filters.

  The counts are the numbers of documents and of words that were read, that were
  kept, and that each filter dropped; and the number of documents that
  normalization changed. Words are separated by white space.
  """
  used_filters = filters.in_use()
  if not used_filters:
    return {}
  rows = _read_rows(partial_folder, filters)
  num_verdicts = len(DROPPING_FILTERS) + 1
  document_counts = np.bincount(rows["verdict"], minlength=num_verdicts)
  # `bincount` adds doubles, which are exact up to 2**53 words.
  word_counts = np.bincount(
    rows["verdict"], rows["words"], minlength=num_verdicts
  )

  def counts(verdict: int | slice) -> dict[str, int]:
    return {
      "documents": int(np.sum(document_counts[verdict])),
      "words": int(np.sum(word_counts[verdict])),
    }

  filtered = {
    "read": counts(slice(None)),
    "kept": counts(0),
    "dropped": {
      name: counts(verdict)
      for verdict, name in enumerate(DROPPING_FILTERS, 1)
      if name in used_filters
    },
  }
  if filters.normalise:
    filtered["normalised"] = {"documents": int(rows["changed"].sum())}
  return {"filtered": filtered}


def report_lines(report: dict[str, Any]) -> Iterator[str]:
  """Yields lines that show a `filter_report` to the user."""
  if not report:
    return

  def size(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {unit}" for unit, count in counts.items())

  filtered = report["filtered"]
  yield f"filters: {size(filtered['read'])} read"
  if "normalised" in filtered:
    yield f"  normalise: {size(filtered['normalised'])} changed"
  for name, counts in filtered["dropped"].items():
    yield f"  {name}: {size(counts)} dropped"
  yield f"  kept: {size(filtered['kept'])}"


def delete_rows_file(path: str) -> None:
  """Deletes the file `VERDICTS_FILE` of a complete folder."""
  pathlib.Path(path, VERDICTS_FILE).unlink(missing_ok=True)
