"""Opens tokenizers: vocabulary files, folders of models, `tokenizer.json`."""

import functools
import inspect
import json
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tokenizers import normalizers

from bert_jax.files import (
  decode,
  digest,
  format_json,
  is_sealed,
  parse_object,
  read_json,
  seal,
  write_durably,
)
from bert_jax.messages import Damaged, UserError
from bert_jax.text import (
  added_tokens,
  bpe,
  cleaning,
  fairseq_pieces,
  unigram,
  wordpiece,
  words,
)
from bert_jax.text.tokenizer_json import from_json
from bert_jax.text.vocabulary import Vocabulary

# The settings of a folder, with the names of transformers where it has them.
SETTINGS = added_tokens.SETTINGS
# transformers' own file of a tokenizer of any kind.
JSON = added_tokens.JSON
PIECES, OTHERS = "pieces.json", "others.txt"
# The files of tokenizers of all kinds, with transformers' names if it has them.
TOKENIZER_FILES = (
  "vocab.txt",
  PIECES,
  "vocab.json",
  "merges.txt",
  "spiece.model",
  "tokenizer.json",
  "tokenizer_config.json",
)
# A key of the settings: digests of the other files.
DIGESTS = "sha256"
_NAMES = {"lower_case": "do_lower_case"}
_CLASSES = {"wordpiece": "BertTokenizer", "gpt1": "OpenAIGPTTokenizer"}
# The class of transformers that takes tokenizer.json as it is. AlbertTokenizer,
# RobertaTokenizer and GPT2Tokenizer have rules of their own.
_JSON_CLASS = "PreTrainedTokenizerFast"
_TYPES = {
  "lower_case": bool,
  "rules": str,
  "add_prefix_space": bool,
  "keep_accents": bool,
  "word_starts": str,
  "strip_accents": bool,
  "tokenize_chinese_chars": bool,
}
# The settings of how text is cleaned; the last two are contraries.
_CLEANING = ("lower_case", "keep_accents", "strip_accents")
# transformers' name of a file, and the names that releases give it.
_PIECE_IDS = ("vocab.json", "encoder.json", "encoder_bpe_40000.json")
_MERGES = ("merges.txt", "vocab.bpe", "vocab_40000.bpe")
_MODELS = ("spiece.model", "30k-clean.model", fairseq_pieces.MODEL)
_NAMED = (JSON, "vocab.txt", *_MODELS, *_PIECE_IDS)
_BRACKETS = re.compile(r"\[.*\]")
_nfd = functools.partial(unicodedata.normalize, "NFD")
# All files that are read from a folder.
NAMES = tuple({name: 0 for name in (*_NAMED, *_MERGES, *added_tokens.FILES)})
# Begins the model in tokenizer.json; in vocab.json no value is an object.
_MODEL = re.compile(r'"model"\s*:\s*\{')


def load(path: str, **options: Any) -> Vocabulary:
  """Opens a tokenizer.

  Args:
    path: a vocabulary of WordPiece or of words (one a line), a SentencePiece
      `.model`, `tokenizer.json`, `vocab.json` with its merges beside it, or a
      folder with any of these, that of a Hugging Face model for example.
    **options: `lower_case` and `keep_accents` (or `strip_accents`), which say
      how the text was cleaned that the pieces were learnt from, where nothing
      beside them says it; and over the settings that came with it: `rules` and
      `tokenize_chinese_chars` (WordPiece), `add_prefix_space` (byte-level BPE),
      `word_starts` (SentencePiece).

  Raises:
    UserError: nothing there, damaged, an option that the kind has not, or one
      that is contrary to how the text was cleaned.
  """
  if not os.path.exists(path):
    raise UserError(
      f"{path}: no such vocabulary; make one with `bert_jax vocab`."
    )
  folder, name = (path, None) if os.path.isdir(path) else os.path.split(path)
  beside = SETTINGS if name is None else settings_beside(path)
  wanted = NAMES if name is None else [name, *_MERGES, beside]
  paths = {n: os.path.join(folder, n) for n in wanted}
  files = {n: _bytes(p) for n, p in paths.items() if os.path.isfile(p)}
  if name is None:
    vocabulary = _of_model(files, folder, options)
  else:
    files = _without_foreign(files, folder, beside, name)
    check_written(files, folder, beside, name)
    settings = _settings(files.get(beside), paths[beside])
    vocabulary = _build(_builder(files, name, folder), path, settings, options)
  if vocabulary.kind == "wordpiece" and JSON not in vocabulary.files:
    wordpiece.check_uncased(vocabulary, path)
  if name is None:
    vocabulary = added_tokens.apply(
      vocabulary, added_tokens.declared(files, folder)
    )
  return vocabulary


def warning(vocabulary: Vocabulary, path: str) -> str | None:
  """Returns a line if over 1% of the pieces are such that no text gives them.

  Args:
    vocabulary: the tokenizer.
    path: the path that it was opened from.
  """
  normalizer = vocabulary.plain.normalizer
  if normalizer is None or (
    vocabulary.keep_accents and not vocabulary.lower_case
  ):
    return None
  special = {vocabulary.pieces[i] for i in vocabulary.special if i is not None}
  lost = [
    piece
    for piece in vocabulary.pieces
    if piece not in special
    and _is_marked(piece, vocabulary.lower_case, vocabulary.keep_accents)
    and normalizer.normalize_str(piece) not in (piece, _nfd(piece))
  ]
  if len(lost) <= 0.01 * len(vocabulary.pieces):
    return None
  return (
    f"warning: {path}: {len(lost):,} of {vocabulary.num_ids:,} pieces, such as"
    f" {lost[0]!r}, have capitals or accents, which are taken from the text"
    " before: no text gives them. If the vocabulary is meant for them, pass"
    " --no-lower-case (lower_case=False) or --keep-accents (keep_accents=True)."
  )


def _is_marked(piece: str, lower_case: bool, keep_accents: bool) -> bool:
  """Returns whether a piece has what cleaning may take away."""
  if lower_case and piece != piece.lower():
    return not _BRACKETS.fullmatch(piece)
  return not (keep_accents or piece.isascii()) and any(
    unicodedata.category(c) == "Mn" for c in _nfd(piece)
  )


def settings_beside(path: str) -> str:
  """Returns the name of the file with the settings of a vocabulary's file.

  It is transformers' own name beside a file that has a name of transformers,
  else one that begins as the vocabulary's does: a folder may have several.
  """
  folder, name = os.path.split(path)
  own_settings = f"{os.path.splitext(name)[0]}.{SETTINGS}"
  named = name in _NAMED and not os.path.isfile(
    os.path.join(folder, own_settings)
  )
  return SETTINGS if named else own_settings


def from_files(
  files: Mapping[str, bytes], folder: str, **options: Any
) -> Vocabulary:
  """Builds the tokenizer of a folder's files.

  Args:
    files: name -> content; any others are ignored.
    folder: the folder that they are in, for messages.
    **options: see `load`.

  Raises:
    UserError: see `load`.
  """
  vocabulary = _of_model(files, folder, options)
  return added_tokens.apply(vocabulary, added_tokens.declared(files, folder))


def _of_model(
  files: Mapping[str, bytes], folder: str, options: Mapping[str, Any]
) -> Vocabulary:
  """Builds the tokenizer without the tokens that other files add to it."""
  # transformers' own file is exact, but leaves nothing to choose.
  choices = options.keys() - {*_CLEANING, "word_starts"}
  order = sorted(_NAMED, key=lambda n: n == JSON and bool(choices))
  name = next((name for name in order if name in files), None)
  if name is None:
    raise UserError(
      f"{folder}: no vocabulary in it: none of {', '.join(_NAMED)}."
    )
  path = os.path.join(folder, name)
  files = _without_foreign(files, folder, SETTINGS, name)
  check_written(files, folder)
  settings = _settings(files.get(SETTINGS), os.path.join(folder, SETTINGS))
  return _build(_builder(files, name, folder), path, settings, options)


def _without_foreign(
  files: Mapping[str, bytes], folder: str, settings: str, name: str
) -> Mapping[str, bytes]:
  """Leaves out settings that were written with a vocabulary of another kind.

  Two vocabularies may stand in one folder, and settings that `contents` wrote
  list the files that they belong to.

  Args:
    files: name -> content.
    folder: the folder that they are in, for messages.
    settings: the name of the settings among them.
    name: the vocabulary's file.
  """
  if settings not in files:
    return files
  path = os.path.join(folder, settings)
  sums = parse_object(decode(files[settings], path), path).get(DIGESTS)
  if not isinstance(sums, dict) or not sums:
    return files
  if _suffix(name) in map(_suffix, sums):
    return files
  return {n: content for n, content in files.items() if n != settings}


def _suffix(name: str) -> str:
  """Returns how the names of a kind's files end; "" for a list of pieces."""
  return next((end for end in (".model", ".json") if name.endswith(end)), "")


def has_tokenizer(files: Mapping[str, bytes]) -> bool:
  """Returns True if a vocabulary is among the files."""
  return any(name in files for name in _NAMED)


def _build(
  build: Callable[..., Vocabulary],
  path: str,
  settings: Mapping[str, Any],
  options: Mapping[str, Any],
) -> Vocabulary:
  """Builds a tokenizer with its settings and a caller's options over them."""
  allowed = inspect.signature(build).parameters.keys() & _TYPES.keys()
  wanted = _cleaning(options)
  options = {k: v for k, v in options.items() if k not in _CLEANING}
  default_accents = None
  for name in options:
    if name not in allowed:
      raise UserError(
        f"{path}: its kind of tokenizer has no option {name!r}; it has"
        f" {sorted(allowed) or 'none'}."
      )
  learnt = _cleaning(settings)
  if learnt.keep_accents is None and learnt.lower_case is not None:
    if "strip_accents" in allowed:
      learnt = learnt.filled()
    elif "lower_case" in allowed and wanted.lower_case is None:
      # As transformers' AlbertTokenizer does where nobody speaks of accents.
      default_accents = None if learnt.lower_case else False
  if isinstance(build, functools.partial) and build.func is unigram.unigram:
    # The rules that a `.model` holds come before the settings beside it.
    fixed = unigram.fixed_cleaning(*build.args, **build.keywords)
    if fixed.lower_case is not None:
      learnt, default_accents = fixed, None
      if fixed.keep_accents is None:
        learnt = fixed._replace(keep_accents=_cleaning(settings).keep_accents)
  _check_rules(settings, options, path)
  values = {k: v for k, v in settings.items() if k in allowed - {*_CLEANING}}
  if "lower_case" in allowed:
    cleaning.check_alike(learnt, wanted, path)
    pairs = zip(learnt, wanted, strict=True)
    merged = cleaning.Cleaning(*(b if a is None else a for a, b in pairs))
    if merged.keep_accents is None:
      merged = merged._replace(keep_accents=default_accents)
    return build(**values | _named(merged, allowed) | options)
  if "keep_accents" in allowed:
    values["keep_accents"] = learnt.keep_accents
  vocabulary = build(**values | options)
  done = cleaning.Cleaning(vocabulary.lower_case, vocabulary.keep_accents)
  cleaning.check_alike(done, wanted, path)
  return vocabulary


def _cleaning(options: Mapping[str, Any]) -> cleaning.Cleaning:
  """Returns how text is cleaned by settings or options of any kind."""
  keep = options.get("keep_accents")
  if keep is None and options.get("strip_accents") is not None:
    keep = not options["strip_accents"]
  return cleaning.Cleaning(options.get("lower_case"), keep)


def _named(
  wanted: cleaning.Cleaning, allowed: Collection[str]
) -> dict[str, bool]:
  """Returns the options of a builder for a cleaning, without None."""
  options = cleaning.asked(*wanted)
  if "strip_accents" in allowed and "keep_accents" in options:
    options["strip_accents"] = not options.pop("keep_accents")
  return options


def _check_rules(
  settings: Mapping[str, Any], options: Mapping[str, Any], path: str
) -> None:
  """Refuses to split words in another way than when they were counted."""
  saved, asked = settings.get("rules"), options.get("rules")
  if saved in words.RULES and asked in words.RULES and saved != asked:
    raise UserError(
      f"{path}: its words were counted with --rules={saved}, and"
      f" --rules={asked} is contrary to that; leave it out, or train another"
      " vocabulary with it."
    )


def _settings(content: bytes | None, path: str) -> dict[str, Any]:
  """Reads a file of settings; there are none where there is no file."""
  if content is None:
    return {}
  content_by_key = parse_object(decode(content, path), path)
  keys = {name: _NAMES.get(name, name) for name in _TYPES}
  values = {
    name: content_by_key[key]
    for name, key in keys.items()
    if key in content_by_key
  }
  for name, value in values.items():
    if value is not None and not isinstance(value, _TYPES[name]):
      raise UserError(
        f"{path}: {keys[name]!r} is {value!r:.40}, not"
        f" {'text' if _TYPES[name] is str else 'true or false'}."
      )
  # transformers writes null for what it decides itself.
  return {name: value for name, value in values.items() if value is not None}


def _builder(
  files: Mapping[str, bytes], name: str, folder: str
) -> Callable[..., Vocabulary]:
  """Returns what builds the tokenizer of a file from options."""
  path, content = os.path.join(folder, name), files[name]
  if name == fairseq_pieces.MODEL:
    settings_path = os.path.join(folder, SETTINGS)
    read = decode(files[SETTINGS], settings_path) if SETTINGS in files else "{}"
    tokenizer_class = str(
      parse_object(read, settings_path).get("tokenizer_class") or ""
    )
    return functools.partial(
      fairseq_pieces.build, content, path, tokenizer_class
    )
  if name.endswith(".model"):
    return functools.partial(unigram.unigram, content, source=path)
  if not name.endswith(".json"):
    pieces = parse_pieces(content, path)
    if set(words.SPECIAL) <= set(pieces):
      return functools.partial(words.build, pieces, source=path)
    return functools.partial(wordpiece.build, pieces, source=path)
  decoded = decode(content, path)
  if name not in _PIECE_IDS and _MODEL.search(decoded):
    return functools.partial(from_json, decoded, source=path)
  vocab = bpe.check_pieces(parse_object(decoded, path), path)
  beside = next((n for n in _MERGES if n in files), None)
  if beside is None:
    raise UserError(f"{path}: no merges beside it: none of {_MERGES}.")
  settings_path = os.path.join(folder, beside)
  merges = bpe.read_merges(decode(files[beside], settings_path), settings_path)
  ends = any(piece.endswith(bpe.END_OF_WORD) for piece in vocab)
  build = bpe.gpt1 if ends else bpe.bytelevel
  return functools.partial(build, vocab, merges, source=path)


def parse_pieces(content: bytes, source: str) -> list[str]:
  """Reads a vocabulary file with a piece on each line.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the file is not UTF-8 or is empty, or a piece occurs twice; the
      message names the lines.
  """
  lines = decode(content, source).split("\n")
  pieces = [line.rstrip("\r") for line in lines]
  while pieces and not pieces[-1]:
    pieces.pop()
  if not pieces:
    raise UserError(f"{source}: the vocabulary is empty.")
  seen: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if seen.setdefault(piece, i) != i:
      raise UserError(
        f"{source}: {piece!r:.40} stands in line {seen[piece] + 1} and again in"
        f" line {i + 1}; every piece needs one id. Remove one of them."
      )
  return pieces


def read_vocab(path: str) -> list[str]:
  """Reads a vocabulary file, a piece a line.

  Raises:
    UserError: not UTF-8, empty, or a piece occurs twice (line numbers named).
  """
  if not os.path.isfile(path):
    raise UserError(
      f"{path}: no such vocabulary file; make one with `bert_jax vocab`"
      ", or use a published vocab.txt."
    )
  with open(path, "rb") as f:
    return parse_pieces(f.read(), path)


def read_pieces(folder: str) -> list[str]:
  """Reads the vocabulary of a folder, of whatever kind.

  Raises:
    UserError: damaged.
  """
  path = os.path.join(folder, PIECES)
  if not os.path.exists(path):
    return read_vocab(os.path.join(folder, "vocab.txt"))
  try:
    pieces = read_json(path)
  except ValueError as e:
    raise Damaged(f"{path} is damaged ({e}).") from e
  if not isinstance(pieces, list) or not pieces:
    raise Damaged(f"{path} is damaged: it holds no list of pieces.")
  if not all(isinstance(piece, str) for piece in pieces):
    raise Damaged(f"{path} is damaged: a piece in it is no text.")
  return pieces


def tokenizer_files(folder: str) -> list[str]:
  """Names of the tokenizer's files that a folder has."""
  present = set(os.listdir(folder))
  return [name for name in TOKENIZER_FILES if name in present]


def _is_listed(vocabulary: Vocabulary) -> bool:
  """Returns True if there is a vocab.txt and it lists all pieces."""
  if vocabulary.kind != "wordpiece" or vocabulary.added:
    return False
  return "vocab.txt" in vocabulary.files


def _unusual(vocabulary: Vocabulary) -> dict[str, Any]:
  """Settings of BertTokenizer and RobertaTokenizer that are not the defaults.

  transformers builds its rules from them, whatever `tokenizer.json` says.
  """
  rules, settings = vocabulary.plain.normalizer, {}
  splitter = vocabulary.plain.pre_tokenizer
  if vocabulary.kind == "bytelevel":
    if getattr(splitter, "add_prefix_space", False):
      settings["add_prefix_space"] = True
    if _class_of(vocabulary) == "RobertaTokenizer":
      tokens = vocabulary.marked.get_added_tokens_decoder()
      mask = tokens[vocabulary.special.mask]
      settings["mask_token"] = {
        "__type": "AddedToken",
        "content": mask.content,
        **added_tokens.flags_of(mask),
      }
  elif isinstance(rules, normalizers.BertNormalizer):
    if rules.strip_accents not in (None, rules.lowercase):
      settings["strip_accents"] = rules.strip_accents
    if not rules.handle_chinese_chars:
      settings["tokenize_chinese_chars"] = False
  return settings


def _class_of(vocabulary: Vocabulary) -> str | None:
  """Returns transformers' class; None for words, which it cannot read."""
  if vocabulary.kind == "bytelevel" and "vocab.json" in vocabulary.files:
    has_mask = vocabulary.special.mask is not None
    return "RobertaTokenizer" if has_mask else "GPT2Tokenizer"
  if vocabulary.kind in ("bytelevel", "unigram"):
    return _JSON_CLASS
  return _CLASSES.get(vocabulary.kind)


def contents(
  vocabulary: Vocabulary, with_digests: bool = True
) -> dict[str, bytes]:
  """Name -> content of all files of a tokenizer, its settings among them.

  Args:
    vocabulary: the tokenizer.
    with_digests: True if the settings get digests, by which `from_files`
      notices a damaged file.
  """
  contents_by_name = dict(vocabulary.files)
  if not _is_listed(vocabulary):
    pieces = json.dumps(list(vocabulary.pieces), ensure_ascii=False)
    contents_by_name[PIECES] = pieces.encode("utf-8")
  if vocabulary.others:
    others = "".join(f"{word}\n" for word in vocabulary.others)
    contents_by_name[OTHERS] = others.encode("utf-8")
  names = {_NAMES.get(k, k): v for k, v in vocabulary.options.items()}
  names |= _unusual(vocabulary)
  if tokenizer_class := _class_of(vocabulary):
    names = {"tokenizer_class": tokenizer_class} | names
  if tokenizer_class == _JSON_CLASS and vocabulary.special.mask is not None:
    special = vocabulary.special._asdict().items()
    names |= {f"{r}_token": vocabulary.pieces[i] for r, i in special}
  names |= added_tokens.settings_of(vocabulary)
  if with_digests:
    names = _with_digests(names, vocabulary.files)
  return contents_by_name | {SETTINGS: format_json(names).encode()}


def digest_settings(files: Mapping[str, bytes]) -> bytes:
  """Settings that hold digests alone, for files that say all the rest.

  Args:
    files: name -> content.
  """
  return format_json(_with_digests({}, files)).encode()


def _with_digests(
  settings: Mapping[str, Any], files: Mapping[str, bytes]
) -> dict[str, Any]:
  sums = {name: digest(content) for name, content in files.items()}
  return seal({**settings, DIGESTS: sums})


def check_written(
  files: Mapping[str, bytes],
  folder: str,
  settings: str = SETTINGS,
  name: str | None = None,
) -> None:
  """Raises UserError if a file is not the one that `contents` made.

  Files that were not made by it, another library's, are not checked, and one
  may be deleted.

  Args:
    files: name -> content.
    folder: the folder that they are in, for messages.
    settings: the name of the settings among them.
    name: the one file of a vocabulary that was given a name of its own.
  """
  path = os.path.join(folder, settings)
  read = {}
  if settings in files:
    read = parse_object(decode(files[settings], path), path)
  # Damage to one of the keys must not hide the other.
  if DIGESTS not in read and "checksum" not in read:
    return
  changed = [settings]
  if is_sealed(read) and isinstance(read.get(DIGESTS), dict):
    sums = read[DIGESTS]
    if name not in sums and len(sums) == 1:
      sums = {name: next(iter(sums.values()))}
    changed = [n for n in sums if n in files and digest(files[n]) != sums[n]]
  if changed:
    raise UserError(
      f"{os.path.join(folder, changed[0])} is not what was written with the"
      " other files of this tokenizer. Put it back; or, if you changed it on"
      f" purpose, delete the keys {DIGESTS!r} and 'checksum' of {path}."
    )


def save(vocabulary: Vocabulary, folder: str) -> None:
  """Writes all files of a tokenizer, for `load`."""
  for name, content in contents(vocabulary).items():
    write_durably(os.path.join(folder, name), content)


def meta(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns what `meta.json` of a prepared folder says of a tokenizer."""
  if _is_listed(vocabulary):
    return {}
  entries: dict[str, Any] = {"special": vocabulary.special._asdict()}
  if vocabulary.unmasked_ids:
    entries["unmasked"] = vocabulary.unmasked_ids
  if vocabulary.kind == "words":
    entries["others"] = len(vocabulary.others)
  return entries


def files_of(folder: str, lower_case: bool) -> dict[str, bytes]:
  """Reads a tokenizer's files in a prepared folder.

  Args:
    folder: the folder.
    lower_case: True if the tokenizer lower-cases text. The settings get it if
      the folder, of an earlier version, has no file of settings.

  Returns:
    Name -> content of the files, the settings among them.
  """
  names = tokenizer_files(folder)
  contents_by_name = {n: _bytes(os.path.join(folder, n)) for n in names}
  if SETTINGS not in contents_by_name:
    settings = {
      "tokenizer_class": _CLASSES["wordpiece"],
      _NAMES["lower_case"]: lower_case,
    }
    settings = _with_digests(settings, contents_by_name)
    contents_by_name[SETTINGS] = format_json(settings).encode()
  return contents_by_name


def load_from(folder: str, lower_case: bool) -> Vocabulary:
  """Opens the tokenizer of a prepared folder; see `files_of`."""
  if os.path.exists(os.path.join(folder, SETTINGS)):
    return load(folder)
  return load(folder, lower_case=lower_case)


def _bytes(path: str) -> bytes:
  with open(path, "rb") as f:
    return f.read()


class OtherVocabulary(UserError):
  """Two vocabularies have different pieces."""


def check_same(
  pieces: Sequence[str],
  other_pieces: Sequence[str],
  name: str,
  other_name: str,
  remedy: str,
) -> None:
  """Raises OtherVocabulary unless two vocabularies have the same pieces.

  Args:
    pieces: the pieces of the first vocabulary.
    other_pieces: the pieces of the second one.
    name: the owner of the first vocabulary, for the message.
    other_name: the owner of the second one, for the message.
    remedy: the end of the message.
  """
  if list(pieces) != list(other_pieces):
    raise OtherVocabulary(
      f"{name} and {other_name} have different vocabularies; {remedy}."
    )


def check_begins(
  pieces: Sequence[str],
  longer: Sequence[str],
  name: str,
  longer_name: str,
  remedy: str = "",
) -> None:
  """Raises OtherVocabulary unless `longer` begins with all of `pieces`.

  Args:
    pieces: the pieces of the first vocabulary.
    longer: the pieces of the second one, which may have more at its end.
    name: the owner of the first vocabulary, for the message.
    longer_name: the owner of the second one, for the message.
    remedy: the end of the message.
  """
  end = f"; {remedy}." if remedy else "."
  for number, (old, new) in enumerate(zip(pieces, longer, strict=False)):
    if old != new:
      raise OtherVocabulary(
        f"{name}: its piece {number} is {old!r}, that of {longer_name} is"
        f" {new!r}{end}"
      )
  if len(pieces) > len(longer):
    raise OtherVocabulary(
      f"{name}: its piece {len(longer)} is {pieces[len(longer)]!r}, and"
      f" {longer_name} has only {len(longer):,} pieces{end}"
    )
