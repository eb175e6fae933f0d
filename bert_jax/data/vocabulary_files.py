"""Opens tokenizers: vocabulary files, folders of models, `tokenizer.json`."""

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.data import added_tokens, bpe, corpus, unigram, wordpiece, words
from bert_jax.data.pieces import parse
from bert_jax.data.tokenizer import Vocabulary
from bert_jax.data.tokenizer_json import from_json

# The settings of a folder, with the names of transformers where it has them.
SETTINGS = added_tokens.SETTINGS
# transformers' own file of a tokenizer of any kind.
JSON = added_tokens.JSON
_NAMES = {"lower_case": "do_lower_case"}
_CLASSES = {
  "wordpiece": "BertTokenizer",
  "gpt1": "OpenAIGPTTokenizer",
  "unigram": "AlbertTokenizer",
}
_TYPES = {
  "lower_case": bool,
  "rules": str,
  "add_prefix_space": bool,
  "keep_accents": bool,
  "strip_accents": bool,
  "tokenize_chinese_chars": bool,
}
# Names of one thing: transformers', and those of the releases.
_PIECES = ("vocab.json", "encoder.json", "encoder_bpe_40000.json")
_MERGES = ("merges.txt", "vocab.bpe", "vocab_40000.bpe")
_MODELS = ("spiece.model", "30k-clean.model")
_NAMED = (JSON, "vocab.txt", *_MODELS, *_PIECES)
# Of a vocabulary's JSON no value is an object.
_MODEL = re.compile(r'"model"\s*:\s*\{')


def load(path: str, **options: Any) -> Vocabulary:
  """Opens a tokenizer.

  Args:
    path: a vocabulary of WordPiece or of words (one a line), a SentencePiece
      `.model`, `tokenizer.json`, `vocab.json` with its merges beside it, or a
      folder with any of these, that of a Hugging Face model for example.
    **options: over those of the folder's settings: `lower_case`, `rules`,
      `strip_accents` and `tokenize_chinese_chars` (WordPiece),
      `add_prefix_space` (byte-level BPE), `lower_case` and `keep_accents`
      (SentencePiece), `rules` (words).

  Raises:
    ValueError: nothing there, damaged, or an option that the kind has not.
  """
  if not os.path.exists(path):
    raise ValueError(
      f"{path}: no such vocabulary; make one with `python -m"
      " bert_jax.train_vocab`."
    )
  folder, name = (path, None) if os.path.isdir(path) else os.path.split(path)
  wanted = [name, *_MERGES]
  if name is None:
    wanted = [*_NAMED, *_MERGES, *added_tokens.FILES]
  paths = {n: os.path.join(folder, n) for n in wanted}
  files = {n: _bytes(p) for n, p in paths.items() if os.path.isfile(p)}
  if name is None:
    made = _of_model(files, folder, options)
  else:
    made = _build(_builder(files, name, folder), path, {}, options)
  if made.kind == "wordpiece" and JSON not in made.files:
    wordpiece.check_uncased(made, path)
  if name is None:
    made = added_tokens.apply(made, added_tokens.declared(files, folder))
  return made


def of_files(
  files: Mapping[str, bytes], folder: str, **options: Any
) -> Vocabulary:
  """Builds the tokenizer of a folder's files.

  Args:
    files: name -> content; any others are ignored.
    folder: where they are, for messages.
    **options: see `load`.

  Raises:
    ValueError: see `load`.
  """
  made = _of_model(files, folder, options)
  return added_tokens.apply(made, added_tokens.declared(files, folder))


def _of_model(
  files: Mapping[str, bytes], folder: str, options: Mapping[str, Any]
) -> Vocabulary:
  """Builds the tokenizer without the tokens that other files add to it."""
  # transformers' own file is exact, but leaves nothing to choose.
  order = sorted(_NAMED, key=lambda n: n == JSON and bool(options))
  name = next((name for name in order if name in files), None)
  if name is None:
    raise ValueError(
      f"{folder}: no vocabulary in it: none of {', '.join(_NAMED)}."
    )
  path = os.path.join(folder, name)
  settings = _settings(files, folder)
  return _build(_builder(files, name, folder), path, settings, options)


def has_tokenizer(files: Mapping[str, bytes]) -> bool:
  """Whether `of_files` would find a vocabulary."""
  return any(name in files for name in _NAMED)


def _build(
  build: Callable[..., Vocabulary],
  path: str,
  settings: Mapping[str, Any],
  options: Mapping[str, Any],
) -> Vocabulary:
  known = inspect.signature(build).parameters.keys() & _TYPES.keys()
  for name in options:
    if name not in known:
      raise ValueError(
        f"{path}: its kind of tokenizer has no option {name!r}; it has"
        f" {sorted(known) or 'none'}."
      )
  return build(**{k: v for k, v in settings.items() if k in known} | options)


def _settings(files: Mapping[str, bytes], folder: str) -> dict[str, Any]:
  path = os.path.join(folder, SETTINGS)
  if SETTINGS not in files:
    return {}
  read = bpe.read_json(text(files[SETTINGS], path), path)
  keys = {name: _NAMES.get(name, name) for name in _TYPES}
  found = {name: read[key] for name, key in keys.items() if key in read}
  for name, value in found.items():
    if value is not None and not isinstance(value, _TYPES[name]):
      raise ValueError(
        f"{path}: {keys[name]!r} is {value!r:.40}, not"
        f" {'text' if _TYPES[name] is str else 'true or false'}."
      )
  # transformers writes null for what it decides itself.
  return {name: value for name, value in found.items() if value is not None}


def _builder(
  files: Mapping[str, bytes], name: str, folder: str
) -> Callable[..., Vocabulary]:
  """Returns what builds the tokenizer of a file from options."""
  path, content = os.path.join(folder, name), files[name]
  if name.endswith(".model"):
    return functools.partial(unigram.unigram, content, source=path)
  if not name.endswith(".json"):
    pieces = parse(content, path)
    if set(words.SPECIAL) <= set(pieces):
      return functools.partial(words.build, pieces, source=path)
    return functools.partial(wordpiece.build, pieces, source=path)
  decoded = text(content, path)
  if name not in _PIECES and _MODEL.search(decoded):
    return functools.partial(from_json, decoded, source=path)
  vocab = bpe.check_pieces(bpe.read_json(decoded, path), path)
  beside = next((n for n in _MERGES if n in files), None)
  if beside is None:
    raise ValueError(f"{path}: no merges beside it: none of {_MERGES}.")
  where = os.path.join(folder, beside)
  merges = bpe.read_merges(text(files[beside], where), where)
  ends = any(piece.endswith(bpe.END_OF_WORD) for piece in vocab)
  build = bpe.gpt1 if ends else bpe.bytelevel
  return functools.partial(build, vocab, merges, source=path)


def contents(vocabulary: Vocabulary) -> dict[str, bytes]:
  """Name -> content of all files of a tokenizer, its settings among them."""
  made = dict(vocabulary.files)
  if vocabulary.kind != "wordpiece" or vocabulary.added:
    pieces = json.dumps(list(vocabulary.pieces), ensure_ascii=False)
    made[corpus.PIECES] = pieces.encode("utf-8")
  if vocabulary.others:
    others = "".join(f"{word}\n" for word in vocabulary.others)
    made[corpus.OTHERS] = others.encode("utf-8")
  names = {_NAMES.get(k, k): v for k, v in vocabulary.options.items()}
  if vocabulary.kind in _CLASSES:
    names = {"tokenizer_class": _CLASSES[vocabulary.kind]} | names
  names |= added_tokens.settings_of(vocabulary)
  settings = json.dumps(names, indent=2, ensure_ascii=False) + "\n"
  return made | {SETTINGS: settings.encode("utf-8")}


def save(vocabulary: Vocabulary, folder: str) -> None:
  """Writes all files of a tokenizer, for `load`."""
  for name, content in contents(vocabulary).items():
    with open(os.path.join(folder, name), "wb") as f:
      f.write(content)
      f.flush()
      os.fsync(f.fileno())


def meta(vocabulary: Vocabulary) -> dict[str, Any]:
  """What `meta.json` of a prepared folder says of a tokenizer."""
  if vocabulary.kind == "wordpiece" and not vocabulary.added:
    return {}
  made: dict[str, Any] = {"special": vocabulary.special._asdict()}
  if vocabulary.unmasked_ids:
    made["unmasked"] = vocabulary.unmasked_ids
  if vocabulary.kind == "words":
    made["others"] = len(vocabulary.others)
  return made


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


def text(content: bytes, path: str) -> str:
  """Decodes a file; ValueError names it if it is not UTF-8."""
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as e:
    raise ValueError(f"{path}: not UTF-8 (byte {e.start}).") from e
