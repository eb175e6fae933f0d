"""Makes a prepared folder from text; interrupted work can be continued."""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.corpus import reader, sources, tokenize
from bert_jax.corpus import sizes as text_sizes
from bert_jax.corpus.filters import (
  Filters,
  delete_rows_file,
  filter_report,
  judge_documents,
  kept_records,
  normalise_record,
  report_lines,
)
from bert_jax.corpus.writer import (
  Job,
  SplitWriter,
  finish_folder,
  hold_folder_lock,
  read_progress,
  remove_leftovers,
  write_derived_files,
  write_progress,
)
from bert_jax.files import PathLike
from bert_jax.messages import (
  DamagedFile,
  Progress,
  UserError,
  by_caller,
  note,
  same_call,
)
from bert_jax.text import open_vocabulary, token_files, words
from bert_jax.text.unigram import WORD_STARTS
from bert_jax.text.vocabulary import Vocabulary

# The seconds between saves.
SAVE_SECONDS = 5.0
# Warn if more than this share of the tokens is unknown.
_MAX_UNKNOWN_SHARE = 0.03
# Warn if words have more than this many tokens on average. A whole-word mask
# hides all tokens of a word, but BERT masks at most 20 of 128 tokens.
_MAX_MEAN_WORD_TOKENS = 8


def prepare(
  inputs: str | Sequence[str],
  vocab: PathLike,
  output: PathLike,
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
  add_tokens: PathLike | None = None,
  in_this_process: bool = False,
) -> dict[str, Any]:
  """Writes text as token ids into a folder that `reader.open_prepared` opens.

  The unfinished folder is `output + ".partial"`. After an interruption, the
  same call continues the work. The bytes of the folder depend only on the
  inputs and the options, and not on interruptions or `processes`.

  Args:
    inputs: see `sources.find_sources`.
    vocab: a vocabulary of any kind, see `open_vocabulary.load`.
    output: the folder to make.
    format: see `sources.find_sources`.
    errors: see `sources.find_sources`.
    heldout: the share of the documents for the split `validation`. A hash of
      the content decides, so exact copies are always in the same split.
    processes: the number of worker processes; None means one process for each
      core.
    lower_case: False for a cased vocabulary. None means the setting in the
      vocabulary's files, or True if the files have no setting.
    keep_accents: True if accents stay. None means the setting in the
      vocabulary's files, or the opposite of `lower_case` if the files have no
      setting.
    rules: see `wordpiece.build` and `words.build`.
    word_starts: see `unigram.build`.
    language: one of `sources.LANGUAGES`, for the rules that split sentences.
    filters: the filters, which drop documents or normalize their text.
    save_seconds: the seconds between saves. An interruption loses the work
      since the last save.
    add_tokens: a file of tokens to add to the vocabulary, see `token_files`.
    in_this_process: True to start no worker process. A script (but not a
      notebook) that starts worker processes must do its work under
      `if __name__ == "__main__":`.

  Returns:
    The content of `meta.json`.

  Raises:
    UserError: the inputs, the vocabulary or the options are bad, the text is
      empty, or the output exists and was made from different inputs or options.
      If the fault is in the text, the unfinished folder is deleted.
    OSError: a file cannot be read or written, or a worker was killed. The same
      call can continue the work.
  """
  if not 0 <= heldout < 1:
    raise UserError(
      f"{by_caller('--heldout', 'heldout')}={heldout} is not a share between 0"
      " and 1."
    )
  if processes is not None and processes < 1:
    raise UserError(
      f"{by_caller('--processes', 'processes')}={processes} is less than one."
    )
  sources.check_language(language)
  filters.check()
  if not (output := os.fspath(output).rstrip("/")):
    raise UserError("the output is empty; name the folder to make.")
  given_settings = {
    "lower_case": lower_case,
    "keep_accents": keep_accents,
    "rules": rules,
    "word_starts": word_starts,
  }
  given_settings = {
    name: setting
    for name, setting in given_settings.items()
    if setting is not None
  }
  tokenizer = open_vocabulary.load(vocab, **given_settings)
  if warning := open_vocabulary.unreachable_warning(tokenizer, vocab):
    note(warning)
  if add_tokens is not None:
    tokenizer, summary = token_files.add_from_file(tokenizer, add_tokens)
    note(summary)
  text_sources = sources.find_sources(inputs, format, errors)
  if tokenizer.algorithm == "words":
    tokenizer = _with_words_from(tokenizer, text_sources, filters)
  options = {
    "vocab_sha256": _vocabulary_digest(tokenizer),
    "format": format,
    "errors": errors,
    "heldout": heldout,
    "lower_case": tokenizer.lower_case,
    "language": language,
    **_unusual_settings(tokenizer),
    **filters.in_use(),
  }
  origin = _describe_origin(options, text_sources)
  if pathlib.Path(output).exists():
    return _reuse_existing(output, origin, tokenizer.algorithm)
  partial_folder = output + ".partial"
  with hold_folder_lock(partial_folder):
    progress = _open_progress(partial_folder, origin, int(heldout * 2**64))
    with _delete_on_bad_text(partial_folder):
      job = Job(
        partial_folder=partial_folder,
        sources=text_sources,
        progress=progress,
        processes=0 if in_this_process else processes or _num_cores(),
        save_seconds=save_seconds,
      )
      judge_documents(job, filters)
      sizes = _write_documents(job, tokenizer, filters)
      report = filter_report(partial_folder, filters)
      with Progress(f"completing {output}"):
        return _complete_folder(
          partial_folder, output, tokenizer, origin, sizes, report
        )


def _with_words_from(
  tokenizer: Vocabulary,
  text_sources: Sequence[sources.Source],
  filters: Filters,
) -> Vocabulary:
  """Returns the tokenizer with ids for every word of the text."""
  note("counting words")
  records, normalise = sources.read_records(text_sources), filters.normalise
  texts = (normalise_record(record, normalise).text for record in records)
  return words.with_words_from(tokenizer, texts)


def _open_progress(
  partial_folder: str, origin: dict[str, Any], threshold: int
) -> dict[str, Any]:
  """Returns the progress of an unfinished folder, which may be new.

  Args:
    partial_folder: the unfinished folder.
    origin: the inputs and options of this call; see `_describe_origin`.
    threshold: the threshold of a new folder. A document is held out if its hash
      is smaller.

  Raises:
    UserError: the folder was begun with different inputs or options.
  """
  progress = read_progress(partial_folder)
  if progress is None:
    return _start_progress(partial_folder, origin, threshold)
  if difference := describe_difference(progress["origin"], origin):
    raise UserError(
      f"{partial_folder} is the unfinished work of another run:"
      f" {difference}. To start anew, delete {partial_folder}."
    )
  if progress["records"]:
    note(
      f"going on after {progress['records']:,} documents of {partial_folder}"
    )
  return progress


def _vocabulary_digest(tokenizer: Vocabulary) -> str:
  """Returns a SHA-256 of all that decides the ids, except `lower_case`."""
  contents = ["\n".join(tokenizer.pieces).encode("utf-8")]
  if tokenizer.algorithm != "wordpiece":
    contents += [tokenizer.plain_text_tokenizer.to_str().encode("utf-8")]
  elif tokenizer.clean is not None:
    contents += [b"original"]
  elif tokenizer.added_tokens:
    contents += [repr(tokenizer.added_tokens).encode("utf-8")]
  return hashlib.sha256(b"\0".join(contents)).hexdigest()


def _unusual_settings(tokenizer: Vocabulary) -> dict[str, Any]:
  """Returns the tokenizer's settings that are not the defaults.

  The meta.json of earlier versions does not have these settings. A folder of an
  earlier version must stay equal to a new folder with the defaults, so the
  defaults are left out.
  """
  unusual_settings: dict[str, Any] = {}
  if tokenizer.keep_accents == tokenizer.lower_case:
    unusual_settings["keep_accents"] = tokenizer.keep_accents
  if tokenizer.options.get("tokenize_chinese_chars") is False:
    unusual_settings["tokenize_chinese_chars"] = False
  if tokenizer.options.get("word_starts", WORD_STARTS[0]) != WORD_STARTS[0]:
    unusual_settings["word_starts"] = tokenizer.options["word_starts"]
  return unusual_settings


def _describe_origin(
  options: dict[str, Any], text_sources: Sequence[sources.Source]
) -> dict[str, Any]:
  """Returns the entries of `meta.json` that say from what a folder is made."""
  inputs = [
    {"name": source.name, "format": source.format, "version": source.version}
    for source in text_sources
  ]
  return {"options": options, "inputs": inputs}


@contextlib.contextmanager
def _delete_on_bad_text(partial_folder: str) -> Iterator[None]:
  """Deletes the unfinished folder if the work cannot be continued.

  An OSError that names no file gets the name of the folder.
  """
  try:
    yield
  except ValueError:
    # The text is bad. The corrected text will differ from it, so the work
    # cannot be continued.
    shutil.rmtree(partial_folder)
    raise
  except OSError as e:
    if e.errno and not e.filename:
      raise OSError(e.errno, e.strerror, partial_folder) from e
    raise


def _start_progress(
  partial_folder: str, origin: dict[str, Any], threshold: int
) -> dict[str, Any]:
  """Writes the progress of a new folder, and returns it."""
  # "records" is the number of documents that were tokenized. "smallest" and
  # "largest" are hashes of documents, see `_better_threshold`.
  progress = {
    "origin": origin,
    "threshold": threshold,
    "records": 0,
    "smallest": [],
    "largest": None,
    "files": {},
  }
  write_progress(partial_folder, progress)
  return progress


def _reuse_existing(
  output: str, origin: dict[str, Any], algorithm: str
) -> dict[str, Any]:
  """Returns the content of `meta.json` of an existing folder.

  Raises UserError if the folder was made from different inputs or options or
  with a different kind of tokenizer, or is damaged.
  """
  folder = pathlib.Path(output)
  if not folder.is_dir() or not any(folder.iterdir()):
    raise UserError(f"{output} exists; delete it or choose another output.")
  prepared = reader.open_prepared(output)
  meta = prepared.meta
  try:
    difference = describe_difference(meta, origin)
  except (KeyError, TypeError) as e:
    raise DamagedFile(
      f"{output}/meta.json is damaged: it does not say what the folder was made"
      f" from. Delete the folder and give {same_call()} again."
    ) from e
  if difference:
    raise UserError(
      f"{output} is prepared already, from something else: {difference}. Delete"
      f" it or choose another {by_caller('--output', 'workdir')}."
    )
  if meta.get("tokenizer") != algorithm:
    raise DamagedFile(
      f"{output}/meta.json is damaged: its tokenizer is"
      f" {meta.get('tokenizer')!r:.40}, not {algorithm!r}. Delete the folder"
      f" and give {same_call()} again."
    )
  reader.check_fingerprint(prepared)
  remove_leftovers(output)
  delete_rows_file(output)
  note(f"{output} is prepared already from the same text; nothing to do.")
  return meta


def describe_difference(
  old_origin: dict[str, Any], new_origin: dict[str, Any]
) -> str:
  """Describes the first difference between two origins; "" if there is none.

  Args:
    old_origin: the origin in `meta.json` or `progress.json`.
    new_origin: the origin of this call; see `_describe_origin`.
  """
  # JSON turns tuples into lists.
  new_origin = json.loads(json.dumps(new_origin))
  for key in {**new_origin["options"], **old_origin["options"]}:
    old_option, new_option = (
      old_origin["options"].get(key),
      new_origin["options"].get(key),
    )
    if old_option != new_option:
      if key == "vocab_sha256":
        return "the vocabulary differs"
      return f"{key} was {old_option}, is {new_option}"
  old_inputs = {entry["name"]: entry for entry in old_origin["inputs"]}
  new_inputs = {entry["name"]: entry for entry in new_origin["inputs"]}
  for name in sorted(old_inputs.keys() | new_inputs.keys()):
    if name not in old_inputs:
      return f"the input {name} is new"
    if name not in new_inputs:
      return f"the input {name} is not given any more"
    if old_inputs[name] != new_inputs[name]:
      return f"the input {name} has changed since"
  return (
    "" if list(old_inputs) == list(new_inputs) else "the inputs' order differs"
  )


def _write_documents(
  job: Job, tokenizer: Vocabulary, filters: Filters
) -> dict[str, dict[str, int]]:
  """Writes the token ids of all kept documents.

  If a split is empty or too small, all documents are written again with a
  better threshold.

  Returns:
    Split -> the numbers of tokens, sentences and documents in it.
  """
  progress = job.progress
  language = progress["origin"]["options"]["language"]
  dtype = reader.token_dtype(tokenizer.num_ids)
  while True:
    writer = SplitWriter(job.partial_folder, dtype, progress)
    try:
      records = kept_records(
        job.partial_folder, filters, sources.read_records(job.sources)
      )
      records = itertools.islice(records, progress["records"], None)
      batches = tokenize.ordered_map(
        tokenize.make_tokenizer,
        (tokenizer, language, progress["threshold"]),
        tokenize.make_batches(records),
        job.processes,
      )
      with contextlib.closing(batches):
        sizes = _write_batches(writer, batches, progress, job.save_seconds)
    finally:
      writer.close()
    if not (sizes["train"]["documents"] or sizes["validation"]["documents"]):
      source_names = ", ".join(source.name for source in job.sources[:3])
      raise UserError(f"{source_names}: there is no text in it.")
    threshold = _better_threshold(progress, sizes)
    if threshold is None:
      return sizes
    num_train, num_heldout = (
      sizes[split]["documents"] for split in reader.SPLITS
    )
    note(
      f"documents are divided by their hashes: {num_train:,} to train on,"
      f" {num_heldout:,} held out; they are divided again, because a split has"
      " too few"
    )
    progress = _start_progress(
      job.partial_folder, progress["origin"], threshold
    )


def _write_batches(
  writer: SplitWriter,
  batches: Iterable[tokenize.TokenizedBatch],
  progress: dict[str, Any],
  save_seconds: float,
) -> dict[str, dict[str, int]]:
  """Writes batches, updates `progress`, and saves from time to time.

  Returns:
    Split -> the numbers of tokens, sentences and documents in it.
  """
  meter = None
  last_save = time.monotonic()
  for batch in batches:
    meter = meter or _ProgressMeter(writer.sizes(), batch.share)
    for split, documents in batch.documents.items():
      writer.append(split, documents)
    progress["records"] += batch.num_records
    smallest_hashes = {*progress["smallest"], *batch.smallest_hashes}
    progress["smallest"] = sorted(smallest_hashes)[:4]
    largest_hashes = [progress["largest"], batch.largest_hash]
    progress["largest"] = max(
      (
        document_hash
        for document_hash in largest_hashes
        if document_hash is not None
      ),
      default=None,
    )
    if time.monotonic() >= last_save + save_seconds:
      writer.save(progress)
      note(meter.line(writer.sizes(), batch.share))
      last_save = time.monotonic()
  writer.save(progress)
  return writer.sizes()


def _better_threshold(
  progress: dict[str, Any], sizes: dict[str, dict[str, int]]
) -> int | None:
  """Returns a threshold for held-out documents with which no split is empty.

  A document is held out if its hash is below the threshold. `progress` has up
  to four of the smallest hashes, and the largest hash.

  If the text has four or more different documents, at least two of them are
  held out, because next-sentence pairs need two documents. If the text has two
  or three different documents, at least one is held out. Returns None if the
  threshold of `progress` needs no change, or if all documents are copies of one
  text.
  """
  if not sizes["train"]["documents"]:
    return progress["largest"]
  smallest_hashes = progress["smallest"]
  min_heldout = len(smallest_hashes) // 2
  if (
    not progress["threshold"] or sizes["validation"]["documents"] >= min_heldout
  ):
    if not min_heldout and progress["threshold"]:
      # There is only one hash, so all documents are copies of one text.
      num_copies = sizes["train"]["documents"]
      copies = f"{num_copies:,} copies of " if num_copies > 1 else ""
      note(
        f"warning: all text is {copies}one document; there is nothing to hold"
        " out."
      )
    return None
  return smallest_hashes[min_heldout - 1] + 1


def _complete_folder(
  partial_folder: str,
  output: str,
  tokenizer: Vocabulary,
  origin: dict[str, Any],
  sizes: dict[str, dict[str, int]],
  report: dict[str, Any],
) -> dict[str, Any]:
  """Writes the other files, gives the folder its name, and prints its sizes.

  Returns the content of `meta.json`.
  """
  open_vocabulary.save(tokenizer, partial_folder)
  unigrams = write_derived_files(
    partial_folder,
    tokenizer.num_ids,
    tokenizer.at_word_boundary,
    marks_word_ends=tokenizer.marks_word_ends,
    is_whole_word_piece=tokenizer.is_added_token
    if tokenizer.added_tokens
    else None,
  )
  meta = {
    "format_version": reader.FORMAT_VERSION,
    "created_by": f"bert_jax {_package_version()}",
    "tokenizer": tokenizer.algorithm,
    "lower_case": tokenizer.lower_case,
    "vocab_size": tokenizer.vocab_size,
    "splits": sizes,
    **open_vocabulary.meta_entries(tokenizer),
    **report,
    "fingerprint": reader.compute_fingerprint(
      partial_folder, origin["options"]
    ),
    **origin,
  }
  meta = finish_folder(partial_folder, output, meta)
  delete_rows_file(output)
  for line in report_lines(report):
    note(line)
  unk_id = tokenizer.special.unk
  formats = {source["format"] for source in origin["inputs"]}
  for split, size in sizes.items():
    note(
      f"{split}: "
      + ", ".join(f"{count:,} {unit}" for unit, count in size.items())
    )
    if size["documents"]:
      dtype = reader.token_dtype(tokenizer.num_ids)
      corpus = reader.open_split(output, split, size, dtype)
      for line in text_sizes.statistics_lines(
        split,
        text_sizes.measure_lengths(corpus.sentences, corpus.documents),
        formats,
      ):
        note(line)
  _warn_of_long_words(output, sizes)
  if unk_id is None:
    return meta
  # For ELMo, words outside the vocabulary have ids after those of the pieces.
  num_outside_words = unigrams[tokenizer.vocab_size :].sum()
  unknown_share = (unigrams[unk_id] + num_outside_words) / unigrams.sum()
  note(f"{tokenizer.pieces[unk_id]}: {unknown_share:.2%} of the tokens")
  if unknown_share > _MAX_UNKNOWN_SHARE and tokenizer.algorithm != "words":
    case_flag, accents_flag = (
      by_caller(" (--no-lower-case)", ""),
      by_caller(" (--keep-accents)", ""),
    )
    note(
      "warning: many words are unknown to the vocabulary; was it made for this"
      f" language, for this case{case_flag} and for accents{accents_flag}?"
    )
  return meta


# How a command ends the warning about words with many tokens.
_WORD_STARTS_ADVICE = (
  "tokens; or, with a SentencePiece model, prepare the text with"
  " --word-starts=albert"
)


def _warn_of_long_words(output: str, sizes: dict[str, dict[str, int]]) -> None:
  """Warns if words have too many tokens on average for whole-word masks."""
  if not (num_tokens := sizes["train"]["tokens"]):
    return
  num_words = 0
  with pathlib.Path(output, "train.word_starts").open("rb") as file:
    while block := file.read(2**24):
      num_words += int(np.bitwise_count(np.frombuffer(block, np.uint8)).sum())
  if num_tokens > _MAX_MEAN_WORD_TOKENS * num_words:
    note(
      f"warning: words have {num_tokens / num_words:.0f} tokens on average, as"
      " in a language that is written without spaces: whole-word masks, n-grams"
      " and spans never take only a part of a word. Mask single"
      f" {by_caller(_WORD_STARTS_ADVICE, 'tokens')}."
    )


class _ProgressMeter:
  """Makes lines that show the progress and the speed of this process."""

  def __init__(self, sizes: dict[str, dict[str, int]], share: float):
    """Begins with the sizes so far, and the share of the inputs read so far."""
    self._start, self._share = time.monotonic(), share
    self._tokens = sum(size["tokens"] for size in sizes.values())

  def line(self, sizes: dict[str, dict[str, int]], share: float) -> str:
    """Returns the line for the new sizes and the new share of the inputs."""
    seconds = max(time.monotonic() - self._start, 1e-3)
    num_tokens = sum(size["tokens"] for size in sizes.values())
    num_documents = sum(size["documents"] for size in sizes.values())
    tokens_per_second = (num_tokens - self._tokens) / seconds
    text = (
      f"{num_documents:,} documents, {num_tokens / 1e6:.1f} M tokens,"
      f" {tokens_per_second / 1e6:.2f} M tokens/s, {share:.0%}"
    )
    share_since_start = share - self._share
    if share_since_start <= 0:
      return text
    remaining_seconds = round(seconds * (1 - share) / share_since_start)
    return (
      f"{text}, {remaining_seconds // 60}:{remaining_seconds % 60:02d} left"
    )


def _package_version() -> str:
  """Returns the version of this package; "?" if it is not installed."""
  try:
    return importlib.metadata.version("bert_jax")
  except importlib.metadata.PackageNotFoundError:
    return "?"


def _num_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
