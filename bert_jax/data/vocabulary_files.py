"""Opens tokenizers: vocabulary files, folders of models, `tokenizer.json`."""

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.data import bpe, corpus, unigram, wordpiece
from bert_jax.data.tokenizer import Vocabulary
from bert_jax.data.tokenizer_json import from_json

# The settings of a folder, with the names of transformers where it has them.
SETTINGS = "tokenizer_config.json"
_NAMES = {"lower_case": "do_lower_case"}
_CLASSES = {
  "wordpiece": "BertTokenizer",
  "gpt1": "OpenAIGPTTokenizer",
  "unigram": "AlbertTokenizer",
}
_OPTIONS = ("lower_case", "rules", "add_prefix_space", "keep_accents")
# Names of one thing: transformers', and those of the releases.
_PIECES = ("vocab.json", "encoder.json", "encoder_bpe_40000.json")
_MERGES = ("merges.txt", "vocab.bpe", "vocab_40000.bpe")
_MODELS = ("spiece.model", "30k-clean.model")


def load(path: str, **options: Any) -> Vocabulary:
  """Opens a tokenizer.

  Args:
    path: a WordPiece vocabulary (a piece a line), a SentencePiece `.model`,
      `tokenizer.json`, `vocab.json` with its merges beside it, or a folder with
      any of these, that of a Hugging Face model for example.
    **options: over those of the folder's settings: `lower_case` and `rules`
      (WordPiece), `add_prefix_space` (byte-level BPE), `lower_case` and
      `keep_accents` (SentencePiece).

  Raises:
    ValueError: nothing there, damaged, or an option that the kind has not.
  """
  if not os.path.exists(path):
    raise ValueError(
      f"{path}: no such vocabulary; make one with `python -m"
      " bert_jax.train_vocab`."
    )
  settings: dict[str, Any] = {}
  if os.path.isdir(path):
    settings, path = _settings(path), _main_file(path, options)
  build = _builder(path)
  known = set(inspect.signature(build).parameters) & set(_OPTIONS)
  for name in options:
    if name not in known:
      raise ValueError(
        f"{path}: its kind of tokenizer has no option {name!r}; it has"
        f" {sorted(known) or 'none'}."
      )
  return build(**{k: v for k, v in settings.items() if k in known} | options)


def _main_file(folder: str, options: Mapping[str, Any]) -> str:
  there = set(os.listdir(folder))
  names = ["tokenizer.json", "vocab.txt", *_MODELS, *_PIECES]
  # transformers' own file is exact, but leaves nothing to choose.
  order = (
    sorted(names, key=lambda n: n == "tokenizer.json") if options else names
  )
  for name in order:
    if name in there:
      return os.path.join(folder, name)
  raise ValueError(
    f"{folder}: no vocabulary in it: none of {', '.join(names)}."
  )


def _settings(folder: str) -> dict[str, Any]:
  path = os.path.join(folder, SETTINGS)
  if not os.path.exists(path):
    return {}
  read = bpe.read_json(_text(path), path)
  keys = {name: _NAMES.get(name, name) for name in _OPTIONS}
  return {name: read[key] for name, key in keys.items() if key in read}


def _builder(path: str) -> Callable[..., Vocabulary]:
  """Returns what builds the tokenizer of a file from options."""
  if path.endswith(".model"):
    return functools.partial(unigram.unigram, _bytes(path), source=path)
  if not path.endswith(".json"):
    pieces = corpus.read_vocab(path)
    return functools.partial(wordpiece.build, pieces, source=path)
  text = _text(path)
  if isinstance(bpe.read_json(text, path).get("model"), dict):
    return functools.partial(from_json, text, source=path)
  vocab = bpe.read_pieces(text, path)
  folder = os.path.dirname(path)
  paths = [os.path.join(folder, name) for name in _MERGES]
  there = [p for p in paths if os.path.exists(p)]
  if not there:
    raise ValueError(f"{path}: no merges beside it: none of {_MERGES}.")
  merges = bpe.read_merges(_text(there[0]), there[0])
  ends = any(piece.endswith(bpe.END_OF_WORD) for piece in vocab)
  build = bpe.gpt1 if ends else bpe.bytelevel
  return functools.partial(build, vocab, merges, source=path)


def contents(vocabulary: Vocabulary) -> dict[str, bytes]:
  """Name -> content of all files of a tokenizer, its settings among them."""
  made = dict(vocabulary.files)
  if vocabulary.kind != "wordpiece":
    pieces = json.dumps(list(vocabulary.pieces), ensure_ascii=False)
    made[corpus.PIECES] = pieces.encode("utf-8")
  names = {_NAMES.get(k, k): v for k, v in vocabulary.options.items()}
  if vocabulary.kind in _CLASSES:
    names = {"tokenizer_class": _CLASSES[vocabulary.kind]} | names
  text = json.dumps(names, indent=2) + "\n"
  return made | {SETTINGS: text.encode("utf-8")}


def save(vocabulary: Vocabulary, folder: str) -> None:
  """Writes all files of a tokenizer, for `load`."""
  for name, content in contents(vocabulary).items():
    with open(os.path.join(folder, name), "wb") as f:
      f.write(content)
      f.flush()
      os.fsync(f.fileno())


def meta(vocabulary: Vocabulary) -> dict[str, Any]:
  """What `meta.json` of a prepared folder says of a tokenizer."""
  if vocabulary.kind == "wordpiece":
    return {}
  return {"special": vocabulary.special._asdict()}


def of_part(part: Any) -> dict[str, bytes]:
  """Name -> content of the tokenizer's files of an opened folder or text."""
  if not isinstance(part, corpus.Prepared):
    return contents(part.tokenizer)
  names = corpus.tokenizer_files(part.path)
  made = {name: _bytes(os.path.join(part.path, name)) for name in names}
  if SETTINGS not in made:
    settings = {
      "tokenizer_class": _CLASSES["wordpiece"],
      _NAMES["lower_case"]: part.meta["lower_case"],
    }
    made[SETTINGS] = json.dumps(settings, indent=2).encode("utf-8") + b"\n"
  return made


def of_prepared(path: str, meta: Mapping[str, Any]) -> Vocabulary:
  """Opens the tokenizer of a prepared folder."""
  if os.path.exists(os.path.join(path, SETTINGS)):
    return load(path)
  return load(path, lower_case=meta["lower_case"])


def _bytes(path: str) -> bytes:
  with open(path, "rb") as f:
    return f.read()


def _text(path: str) -> str:
  try:
    return _bytes(path).decode("utf-8")
  except UnicodeDecodeError as e:
    raise ValueError(f"{path}: not UTF-8 (byte {e.start}).") from e
