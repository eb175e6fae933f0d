"""Text to a prepared folder: reads, tokenises in processes, writes, resumes."""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus import reader, sources, tokenize
from bert_jax.corpus import sizes as text_sizes
from bert_jax.corpus.filters import (
  Filters,
  delete_rows,
  filter_report,
  judge_documents,
  kept_records,
  normalised,
  report_lines,
)
from bert_jax.corpus.writer import (
  Writer,
  derive,
  finish,
  locked,
  read_progress,
  remove_leftovers,
  write_progress,
)
from bert_jax.messages import Damaged, UserError, note
from bert_jax.text import open_vocabulary, token_files, words
from bert_jax.text.unigram import WORD_STARTS
from bert_jax.text.vocabulary import Vocabulary

SAVE_SECONDS = 5.0
_MANY_UNKNOWN = 0.03
# Tokens of a word; BERT masks at most 20 of 128.
_LONG_WORD = 8


def prepare(
  inputs: str | Sequence[str],
  vocab: str,
  output: str,
  format: str = "auto",
  errors: str = "strict",
  heldout: float = 0.005,
  processes: int | None = None,
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  rules: str | None = None,
  word_starts: str | None = None,
  language: str = "en",
  filters: Filters = Filters(),  # noqa: B008
  save_seconds: float = SAVE_SECONDS,
  add_tokens: str | None = None,
) -> dict[str, Any]:
  """Tokenises text once, into a folder that `reader.open_prepared` opens.

  Work is in `output + ".partial"` until it is complete; an interrupted call
  goes on where it stopped when it is repeated. The folder's bytes depend on
  inputs and options only, never on interruptions or `processes`.

  Args:
    inputs, format, errors: see `sources.find_sources`.
    vocab: path of a vocabulary of any kind, see `open_vocabulary.load`.
    output: the folder to make.
    heldout: share of the documents that becomes the split `validation`, by a
      hash of their content: exact copies are always in the same split.
    processes: worker processes; None for one a usable core.
    lower_case: False for a cased vocabulary; None for what came with it, True
      if nothing does.
    keep_accents: None for what came with the vocabulary; if nothing did they
      are kept where capitals are.
    rules: see `wordpiece.build` and `words.build`.
    word_starts: see `unigram.unigram`.
    language: one of `sources.LANGUAGES`, for splitting sentences.
    filters: which documents to drop, and Unicode normalisation.
    save_seconds: time between saves, which an interruption can cost at most.
    add_tokens: a file of tokens to add to the vocabulary, see `token_files`.

  Returns:
    The content of `meta.json`.

  Raises:
    UserError: bad inputs, vocabulary or options; the text is empty; or the
      output exists and was made from something else. Nothing is left behind.
    OSError: cannot read or write, or a worker was killed; can be continued.
  """
  if not 0 <= heldout < 1:
    raise UserError(f"--heldout={heldout} is not a share between 0 and 1.")
  if processes is not None and processes < 1:
    raise UserError(f"--processes={processes} is less than one.")
  sources.check_language(language)
  filters.check()
  if not (output := output.rstrip("/")):
    raise UserError("--output is empty; name the folder to make.")
  choices = {
    "lower_case": lower_case,
    "keep_accents": keep_accents,
    "rules": rules,
    "word_starts": word_starts,
  }
  choices = {k: value for k, value in choices.items() if value is not None}
  tokenizer = open_vocabulary.load(vocab, **choices)
  if line := open_vocabulary.warning(tokenizer, vocab):
    note(line)
  if add_tokens is not None:
    tokenizer, line = token_files.extend(tokenizer, add_tokens)
    note(line)
  found_sources = sources.find_sources(inputs, format, errors)
  if tokenizer.kind == "words":
    tokenizer = _cover(tokenizer, found_sources, filters)
  options = {
    "vocab_sha256": _digest(tokenizer),
    "format": format,
    "errors": errors,
    "heldout": heldout,
    "lower_case": tokenizer.lower_case,
    "language": language,
    **_unusual(tokenizer),
    **filters.used(),
  }
  origin = _origin(options, found_sources)
  if os.path.exists(output):
    return _already_there(output, origin, tokenizer.kind)
  partial = output + ".partial"
  with locked(partial):
    progress = _begin(partial, origin, int(heldout * 2**64))
    with _cleared_up(partial):
      processes = processes or _cores()
      judge_documents(
        partial, filters, found_sources, progress, processes, save_seconds
      )
      sizes = _tokenize(
        partial,
        tokenizer,
        found_sources,
        filters,
        progress,
        processes,
        save_seconds,
      )
      report = filter_report(partial, filters)
      return _complete(partial, output, tokenizer, origin, sizes, report)


def _cover(
  tokenizer: Vocabulary,
  found_sources: Sequence[sources.Source],
  filters: Filters,
) -> Vocabulary:
  """The tokenizer with ids for every word of the text."""
  note("counting words")
  records, form = sources.read_records(found_sources), filters.normalise
  texts = (normalised(record, form).text for record in records)
  return words.cover(tokenizer, texts)


def _begin(
  partial: str, origin: dict[str, Any], threshold: int
) -> dict[str, Any]:
  """Returns the progress of an earlier run, or that has not begun."""
  progress = read_progress(partial)
  if progress is None:
    return _start(partial, origin, threshold)
  if different := difference(progress["origin"], origin):
    raise UserError(
      f"{partial} is the unfinished work of another run: {different}. To start"
      f" anew, delete {partial}."
    )
  if progress["records"]:
    note(f"going on after {progress['records']:,} documents of {partial}")
  return progress


def _digest(tokenizer: Vocabulary) -> str:
  """SHA-256 of all that ids depend on, lower case apart."""
  parts = ["\n".join(tokenizer.pieces).encode("utf-8")]
  if tokenizer.kind != "wordpiece":
    parts += [tokenizer.plain.to_str().encode("utf-8")]
  elif tokenizer.clean is not None:
    parts += [b"original"]
  elif tokenizer.added:
    parts += [repr(tokenizer.added).encode("utf-8")]
  return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _unusual(tokenizer: Vocabulary) -> dict[str, Any]:
  """Returns settings that older folders do not name, where they are unusual."""
  unusual: dict[str, Any] = {}
  if tokenizer.keep_accents == tokenizer.lower_case:
    unusual["keep_accents"] = tokenizer.keep_accents
  if tokenizer.options.get("tokenize_chinese_chars") is False:
    unusual["tokenize_chinese_chars"] = False
  if tokenizer.options.get("word_starts", WORD_STARTS[0]) != WORD_STARTS[0]:
    unusual["word_starts"] = tokenizer.options["word_starts"]
  return unusual


def _origin(
  options: dict[str, Any], found_sources: Sequence[sources.Source]
) -> dict[str, Any]:
  """Returns what a folder is made from, as `meta.json` holds it."""
  inputs = [
    {"name": s.name, "format": s.kind, "version": s.version}
    for s in found_sources
  ]
  return {"options": options, "inputs": inputs}


@contextlib.contextmanager
def _cleared_up(partial: str) -> Iterator[None]:
  """Deletes what can never be continued; names the folder in disk errors."""
  try:
    yield
  except ValueError:
    # The text is at fault, and mending it makes it another input.
    shutil.rmtree(partial)
    raise
  except OSError as e:
    if e.errno and not e.filename:
      raise OSError(e.errno, e.strerror, partial) from e
    raise


def _start(
  partial: str, origin: dict[str, Any], threshold: int
) -> dict[str, Any]:
  """Returns progress that has not begun, saved before any file is cut."""
  progress = {
    "origin": origin,
    "threshold": threshold,
    "records": 0,
    "smallest": [],
    "largest": None,
    "files": {},
  }
  write_progress(partial, progress)
  return progress


def _already_there(
  output: str, origin: dict[str, Any], kind: str
) -> dict[str, Any]:
  if not os.path.isdir(output) or os.listdir(output) == []:
    raise UserError(f"{output} exists; delete it or choose another --output.")
  prepared = reader.open_prepared(output)
  meta = prepared.meta
  try:
    different = difference(meta, origin)
  except (KeyError, TypeError) as e:
    raise Damaged(
      f"{output}/meta.json is damaged: it does not say what the folder was made"
      " from. Delete the folder and give the same command again."
    ) from e
  if different:
    raise UserError(
      f"{output} is prepared already, from something else: {different}. Delete"
      " it or choose another --output."
    )
  if meta.get("tokenizer") != kind:
    raise Damaged(
      f"{output}/meta.json is damaged: its tokenizer is"
      f" {meta.get('tokenizer')!r:.40}, not {kind!r}. Delete the folder and"
      " give the same command again."
    )
  reader.verify(prepared)
  remove_leftovers(output)
  delete_rows(output)
  note(f"{output} is prepared already from the same text; nothing to do.")
  return meta


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
  """Returns what differs first between two origins, or an empty string."""
  # As after a round trip through JSON.
  new = json.loads(json.dumps(new))
  # Filters that are off are in neither.
  for key in {**new["options"], **old["options"]}:
    was, now = old["options"].get(key), new["options"].get(key)
    if was != now:
      if key == "vocab_sha256":
        return "the vocabulary differs"
      return f"{key} was {was}, is {now}"
  before = {i["name"]: i for i in old["inputs"]}
  after = {i["name"]: i for i in new["inputs"]}
  for name in sorted(before.keys() | after.keys()):
    if name not in before:
      return f"the input {name} is new"
    if name not in after:
      return f"the input {name} is not given any more"
    if before[name] != after[name]:
      return f"the input {name} has changed since"
  return "" if list(before) == list(after) else "the inputs' order differs"


def _tokenize(
  partial: str,
  tokenizer: Vocabulary,
  found_sources: Sequence[sources.Source],
  filters: Filters,
  progress: dict[str, Any],
  processes: int,
  save_seconds: float,
) -> dict[str, dict[str, int]]:
  """Writes all documents, with another held-out threshold if need be."""
  language = progress["origin"]["options"]["language"]
  dtype = reader.token_dtype(tokenizer.num_ids)
  while True:
    writer = Writer(partial, dtype, progress)
    try:
      setup = tokenizer, language, progress["threshold"]
      records = kept_records(
        partial, filters, sources.read_records(found_sources)
      )
      records = itertools.islice(records, progress["records"], None)
      results = tokenize.ordered_map(
        tokenize.make_tokenizer, setup, tokenize.batches(records), processes
      )
      with contextlib.closing(results):
        sizes = _write(writer, results, progress, save_seconds)
    finally:
      writer.close()
    if not (sizes["train"]["documents"] or sizes["validation"]["documents"]):
      names = ", ".join(source.name for source in found_sources[:3])
      raise UserError(f"{names}: there is no text in it.")
    threshold = _better_threshold(progress, sizes)
    if threshold is None:
      return sizes
    note("too few documents for this --heldout: choosing one for each split")
    progress = _start(partial, progress["origin"], threshold)


def _write(
  writer: Writer, results, progress: dict[str, Any], save_seconds: float
) -> dict[str, dict[str, int]]:
  """Appends results and updates `progress`, saving from time to time."""
  meter = None
  saved = time.monotonic()
  for result in results:
    meter = meter or _Meter(writer.sizes(), result.share)
    for split, part in result.parts.items():
      writer.append(split, part)
    progress["records"] += result.records
    smallest = {*progress["smallest"], *result.smallest}
    progress["smallest"] = sorted(smallest)[:4]
    largest = [progress["largest"], result.largest]
    progress["largest"] = max(
      (h for h in largest if h is not None), default=None
    )
    if time.monotonic() >= saved + save_seconds:
      writer.save(progress)
      note(meter.line(writer.sizes(), result.share))
      saved = time.monotonic()
  writer.save(progress)
  return writer.sizes()


def _better_threshold(
  progress: dict[str, Any], sizes: dict[str, dict[str, int]]
) -> int | None:
  """Returns a threshold that serves both splits, None if this one does.

  Next-sentence pairs need two documents, also in the held-out split: it gets
  two where there are four, else one.
  """
  if not sizes["train"]["documents"]:
    return progress["largest"]
  smallest = progress["smallest"]
  wanted = len(smallest) // 2
  if not progress["threshold"] or sizes["validation"]["documents"] >= wanted:
    if not wanted and progress["threshold"]:
      # `smallest` has each hash once: copies of a text are in the same split.
      count = sizes["train"]["documents"]
      copies = f"{count:,} copies of " if count > 1 else ""
      note(
        f"warning: all text is {copies}one document; there is nothing to hold"
        " out."
      )
    return None
  return smallest[wanted - 1] + 1


def _complete(
  partial: str,
  output: str,
  tokenizer: Vocabulary,
  origin: dict[str, Any],
  sizes: dict[str, dict[str, int]],
  report: dict[str, Any],
) -> dict[str, Any]:
  """Writes the remaining files, reports, and gives the folder its name."""
  open_vocabulary.save(tokenizer, partial)
  unigrams = derive(
    partial,
    tokenizer.num_ids,
    tokenizer.boundary,
    tokenizer.ends,
    tokenizer.alone if tokenizer.added else None,
  )
  meta = {
    "format_version": reader.FORMAT_VERSION,
    "created_by": f"bert_jax {_version()}",
    "tokenizer": tokenizer.kind,
    "lower_case": tokenizer.lower_case,
    "vocab_size": tokenizer.vocab_size,
    "splits": sizes,
    **open_vocabulary.meta(tokenizer),
    **report,
    "fingerprint": reader.fingerprint(partial, origin["options"]),
    **origin,
  }
  meta = finish(partial, output, meta)
  delete_rows(output)
  for line in report_lines(report):
    note(line)
  unk = tokenizer.special.unk
  formats = {source["format"] for source in origin["inputs"]}
  for split, size in sizes.items():
    note(f"{split}: " + ", ".join(f"{n:,} {what}" for what, n in size.items()))
    if size["documents"]:
      dtype = reader.token_dtype(tokenizer.num_ids)
      arrays = reader.open_split(output, split, size, dtype)
      for line in text_sizes.size_lines(
        split,
        text_sizes.sizes_of(arrays.sentences, arrays.documents),
        formats,
      ):
        note(line)
  _log_long_words(output, sizes)
  if unk is None:
    return meta
  beyond = unigrams[tokenizer.vocab_size :].sum()
  unknown = (unigrams[unk] + beyond) / unigrams.sum()
  note(f"{tokenizer.pieces[unk]}: {unknown:.2%} of the tokens")
  if unknown > _MANY_UNKNOWN and tokenizer.kind != "words":
    note(
      "warning: many words are unknown to the vocabulary; is it one for this"
      " language, case (--no-lower-case) and accents (--keep-accents)?"
    )
  return meta


def _log_long_words(output: str, sizes: dict[str, dict[str, int]]) -> None:
  """Says so if whole words are so long that none may fit among the masks."""
  if not (tokens := sizes["train"]["tokens"]):
    return
  count = 0
  with open(os.path.join(output, "train.word_starts"), "rb") as f:
    while block := f.read(2**24):
      count += int(np.bitwise_count(np.frombuffer(block, np.uint8)).sum())
  if tokens > _LONG_WORD * count:
    note(
      f"warning: words have {tokens / count:.0f} tokens on average, as in a"
      " language that is written without spaces: whole-word masks, n-grams and"
      " spans take all of a word or nothing. Mask single tokens, or (a"
      " SentencePiece model) prepare the text with --word-starts=albert."
    )


class _Meter:
  """Progress lines; rates are those of this run, not of earlier ones."""

  def __init__(self, sizes: dict[str, dict[str, int]], share: float):
    self._start, self._share = time.monotonic(), share
    self._tokens = sum(size["tokens"] for size in sizes.values())

  def line(self, sizes: dict[str, dict[str, int]], share: float) -> str:
    seconds = max(time.monotonic() - self._start, 1e-3)
    tokens = sum(size["tokens"] for size in sizes.values())
    documents = sum(size["documents"] for size in sizes.values())
    rate = (tokens - self._tokens) / seconds
    text = (
      f"{documents:,} documents, {tokens / 1e6:.1f} M tokens,"
      f" {rate / 1e6:.2f} M tokens/s, {share:.0%}"
    )
    done = share - self._share
    if done <= 0:
      return text
    left = round(seconds * (1 - share) / done)
    return f"{text}, {left // 60}:{left % 60:02d} left"


def _version() -> str:
  """Returns the version of this package; "?" if it is not installed."""
  try:
    return importlib.metadata.version("bert_jax")
  except importlib.metadata.PackageNotFoundError:
    return "?"


def _cores() -> int:
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
