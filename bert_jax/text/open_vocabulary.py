"""Opens tokenizers from vocabulary files or from folders of models."""

import functools
import inspect
import json
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from etils import epath
from tokenizers import normalizers

from bert_jax.files import (
  PathLike,
  add_checksum,
  content_digest,
  decode_utf8,
  format_json,
  has_valid_checksum,
  read_json,
  write_durably,
)
from bert_jax.messages import DamagedFile, UserError, by_caller
from bert_jax.text import (
  added_tokens,
  bpe,
  cleaning,
  fairseq_pieces,
  file_contents,
  unigram,
  wordpiece,
  words,
)
from bert_jax.text.tokenizer_json import from_json
from bert_jax.text.vocabulary import Vocabulary

# The file with a tokenizer's settings. A setting that transformers also has is
# stored under the key that transformers uses.
SETTINGS_FILE = added_tokens.SETTINGS_JSON
# transformers' file for a tokenizer of any kind.
TOKENIZER_JSON = added_tokens.TOKENIZER_JSON
# Files of a prepared folder: all pieces, and `Vocabulary.other_words`.
PIECES_FILE, OTHER_WORDS_FILE = "pieces.json", "others.txt"
# The files of a tokenizer that `to_files` may write. A file that transformers
# also writes has the name that transformers uses.
TOKENIZER_FILES = (
  "vocab.txt",
  PIECES_FILE,
  "vocab.json",
  "merges.txt",
  "spiece.model",
  "tokenizer.json",
  "tokenizer_config.json",
)
# The key of the settings that holds the digests of the tokenizer's files.
DIGESTS_KEY = "sha256"
# Option of `load` -> transformers' key in the settings, if the names differ.
_SETTINGS_KEYS = {"lower_case": "do_lower_case"}
# `Vocabulary.algorithm` -> transformers' class for its files.
_TRANSFORMERS_CLASSES = {
  "wordpiece": "BertTokenizer",
  "gpt1": "OpenAIGPTTokenizer",
}
# The class of transformers that follows all rules of tokenizer.json.
# AlbertTokenizer, RobertaTokenizer and GPT2Tokenizer replace some of the rules.
_JSON_CLASS = "PreTrainedTokenizerFast"
# Option of `load` -> its type.
_OPTION_TYPES = {
  "lower_case": bool,
  "rules": str,
  "add_prefix_space": bool,
  "keep_accents": bool,
  "word_starts": str,
  "strip_accents": bool,
  "tokenize_chinese_chars": bool,
}
# The options that say how text is cleaned. keep_accents=True means the same as
# strip_accents=False.
_CLEANING_OPTIONS = ("lower_case", "keep_accents", "strip_accents")
# The names that a file of a vocabulary may have. Each list begins with the name
# that transformers uses; the names after it are from original releases.
_PIECE_ID_FILES = ("vocab.json", "encoder.json", "encoder_bpe_40000.json")
_MERGES_FILES = ("merges.txt", "vocab.bpe", "vocab_40000.bpe")
_MODEL_FILES = ("spiece.model", "30k-clean.model", fairseq_pieces.MODEL_FILE)
# The names of vocabulary files. If a folder has several, the first is used.
_VOCABULARY_FILES = (
  TOKENIZER_JSON,
  "vocab.txt",
  *_MODEL_FILES,
  *_PIECE_ID_FILES,
)
_BRACKETS_PATTERN = re.compile(r"\[.*\]")
_decompose = functools.partial(unicodedata.normalize, "NFD")
# The names of all files that are read from a folder.
INPUT_FILES = tuple(
  dict.fromkeys(
    [*_VOCABULARY_FILES, *_MERGES_FILES, *added_tokens.DECLARING_FILES]
  )
)
# Matches the key "model" in tokenizer.json. It matches nothing in vocab.json,
# where no value is an object.
_MODEL_KEY_PATTERN = re.compile(r'"model"\s*:\s*\{')


def load(path: PathLike, **options: Any) -> Vocabulary:
  """Opens a tokenizer.

  Args:
    path: one of these files: a vocabulary of WordPiece or of words (one piece
      on each line), a SentencePiece `.model`, a `tokenizer.json`, or a
      `vocab.json` with its merges in the same folder. Or a folder with one of
      these files, such as the folder of a Hugging Face model.
    **options: `lower_case` and `keep_accents` (or `strip_accents`) say how the
      vocabulary's training text was cleaned. Both are needed only if the files
      do not say how. The following options override the settings in the files:
      `rules` and `tokenize_chinese_chars` (WordPiece), `add_prefix_space`
      (byte-level BPE), `word_starts` (SentencePiece).

  Raises:
    UserError: there is no vocabulary, a file is damaged, this kind of tokenizer
      does not have an option, or an option contradicts how the text was
      cleaned.
  """
  source = os.fspath(path)
  vocabulary_path = epath.Path(path)
  if not vocabulary_path.exists():
    raise UserError(
      f"there is no vocabulary {source};"
      f" {by_caller('make one with `bert_jax vocab`', _VOCABULARY_ADVICE)}."
    )
  if vocabulary_path.is_dir():
    contents_by_name = _read_existing(vocabulary_path, INPUT_FILES)
    vocabulary = _build_from_folder(contents_by_name, source, options)
    _check_uncased(vocabulary, source)
    tokens = added_tokens.read_declared_tokens(contents_by_name, source)
    return added_tokens.add_declared_tokens(vocabulary, tokens)
  file_name, folder = vocabulary_path.name, str(vocabulary_path.parent)
  settings_name = settings_name_for(path)
  contents_by_name = _read_existing(
    vocabulary_path.parent, [file_name, *_MERGES_FILES, settings_name]
  )
  contents_by_name = _without_foreign_settings(
    contents_by_name, folder, settings_name, file_name
  )
  check_digests(contents_by_name, folder, settings_name, file_name)
  settings = _read_settings(contents_by_name, folder, settings_name)
  build = _choose_build_function(contents_by_name, file_name, folder)
  vocabulary = _build_with_options(build, source, settings, options)
  _check_uncased(vocabulary, source)
  return vocabulary


def _read_existing(
  folder: epath.Path, names: Iterable[str]
) -> Mapping[str, bytes]:
  """Returns name -> content of the named files that are in a folder."""
  paths = {name: folder / name for name in names}
  return {
    file_name: path.read_bytes()
    for file_name, path in paths.items()
    if path.is_file()
  }


def _check_uncased(vocabulary: Vocabulary, source: str) -> None:
  """Calls `wordpiece.check_uncased` for WordPiece without a tokenizer.json."""
  if (
    vocabulary.algorithm == "wordpiece"
    and TOKENIZER_JSON not in vocabulary.files
  ):
    wordpiece.check_uncased(vocabulary, source)


# Advice for a caller of a Python function who has no vocabulary.
_VOCABULARY_ADVICE = "without vocabulary=, one is trained on the text"


def unreachable_warning(vocabulary: Vocabulary, path: PathLike) -> str | None:
  """Returns a warning if over 1% of the pieces can occur in no cleaned text.

  Args:
    vocabulary: the tokenizer.
    path: the path from which it was opened.
  """
  normalizer = vocabulary.plain_text_tokenizer.normalizer
  if normalizer is None or (
    vocabulary.keep_accents and not vocabulary.lower_case
  ):
    return None
  special_pieces = {
    vocabulary.pieces[special_id]
    for special_id in vocabulary.special
    if special_id is not None
  }
  lost_pieces = [
    piece
    for piece in vocabulary.pieces
    if piece not in special_pieces
    and _is_changed_by_cleaning(
      piece, vocabulary.lower_case, vocabulary.keep_accents
    )
    and normalizer.normalize_str(piece) not in (piece, _decompose(piece))
  ]
  if len(lost_pieces) <= 0.01 * len(vocabulary.pieces):
    return None
  remedy = by_caller(
    "pass --no-lower-case (lower_case=False) or --keep-accents"
    " (keep_accents=True)",
    "set do_lower_case to false in the tokenizer_config.json of its folder",
  )
  return (
    f"warning: {path}: {len(lost_pieces):,} of {vocabulary.num_ids:,} pieces,"
    f" such as {lost_pieces[0]!r}, have capitals or accents. These are removed"
    " from a text before it is cut into pieces, so no text gives them. If the"
    f" vocabulary is meant for text that keeps them, {remedy}."
  )


def _is_changed_by_cleaning(
  piece: str, lower_case: bool, keep_accents: bool
) -> bool:
  """Returns True if a piece has capitals or marks that cleaning removes."""
  if lower_case and piece != piece.lower():
    return not _BRACKETS_PATTERN.fullmatch(piece)
  return not (keep_accents or piece.isascii()) and any(
    unicodedata.category(c) == "Mn" for c in _decompose(piece)
  )


def settings_name_for(path: PathLike) -> str:
  """Returns the name of the file with the settings of a vocabulary file.

  The settings of a file in `_VOCABULARY_FILES`, such as `vocab.txt`, are in
  `vocab.tokenizer_config.json` if that file exists, or else in
  `tokenizer_config.json`. The settings of any other file, such as `mine.txt`,
  are in `mine.tokenizer_config.json`, because a folder may hold several
  vocabularies.
  """
  vocabulary_path = epath.Path(path)
  prefixed_name = f"{vocabulary_path.stem}.{SETTINGS_FILE}"
  if vocabulary_path.name not in _VOCABULARY_FILES:
    return prefixed_name
  return (
    prefixed_name
    if (vocabulary_path.parent / prefixed_name).is_file()
    else SETTINGS_FILE
  )


def from_files(
  files: Mapping[str, bytes], folder: str, **options: Any
) -> Vocabulary:
  """Builds the tokenizer of a folder's files.

  Args:
    files: file name -> content; only the names in `INPUT_FILES` are read.
    folder: the folder of the files, for messages.
    **options: see `load`.

  Raises:
    UserError: see `load`.
  """
  vocabulary = _build_from_folder(files, folder, options)
  return added_tokens.add_declared_tokens(
    vocabulary, added_tokens.read_declared_tokens(files, folder)
  )


def _build_from_folder(
  files: Mapping[str, bytes], folder: str, options: Mapping[str, Any]
) -> Vocabulary:
  """Builds the tokenizer of a folder's files, without the declared tokens."""
  # A tokenizer.json stores all rules exactly, but it cannot follow options that
  # change a rule. If such an option is given, any other vocabulary file of the
  # folder comes first.
  needs_options = bool(options.keys() - {*_CLEANING_OPTIONS, "word_starts"})
  names_in_order = sorted(
    _VOCABULARY_FILES, key=lambda n: n == TOKENIZER_JSON and needs_options
  )
  name = next((name for name in names_in_order if name in files), None)
  if name is None:
    raise UserError(
      f"{folder} has no vocabulary; put one of these files into it:"
      f" {', '.join(_VOCABULARY_FILES)}."
    )
  path = file_contents.path_of(folder, name)
  files = _without_foreign_settings(files, folder, SETTINGS_FILE, name)
  check_digests(files, folder)
  settings = _read_settings(files, folder, SETTINGS_FILE)
  return _build_with_options(
    _choose_build_function(files, name, folder), path, settings, options
  )


def _without_foreign_settings(
  files: Mapping[str, bytes], folder: str, settings_name: str, name: str
) -> Mapping[str, bytes]:
  """Leaves out settings that were written with a file of a different kind.

  A folder may hold two vocabularies. Settings that `to_files` wrote list the
  files to which they belong. Settings that list no files are never left out.

  Args:
    files: file name -> content.
    folder: the folder of the files, for messages.
    settings_name: the name of the file of settings.
    name: the name of the vocabulary's file.
  """
  digests = file_contents.parse_file(files, folder, settings_name).get(
    DIGESTS_KEY
  )
  if not isinstance(digests, dict) or not digests:
    return files
  if _suffix(name) in map(_suffix, digests):
    return files
  return {
    file_name: content
    for file_name, content in files.items()
    if file_name != settings_name
  }


def _suffix(name: str) -> str:
  """Returns the ending that shows a vocabulary's kind; "" for vocab.txt."""
  return next(
    (suffix for suffix in (".model", ".json") if name.endswith(suffix)), ""
  )


def has_tokenizer(files: Mapping[str, bytes]) -> bool:
  """Returns True if a vocabulary is among the files."""
  return any(name in files for name in _VOCABULARY_FILES)


def _build_with_options(
  build: Callable[..., Vocabulary],
  path: str,
  settings: Mapping[str, Any],
  options: Mapping[str, Any],
) -> Vocabulary:
  """Builds a tokenizer by a function that `_choose_build_function` returned.

  Args:
    build: the function, which takes options.
    path: the file of the vocabulary, for messages.
    settings: the options in the file of settings.
    options: the caller's options, which override the settings.

  Raises:
    UserError: `build` does not take an option, or an option contradicts the
      settings.
  """
  allowed_options = (
    inspect.signature(build).parameters.keys() & _OPTION_TYPES.keys()
  )
  # The cleaning that the caller asks for.
  asked_cleaning = _cleaning_from(options)
  options = {
    option_name: option
    for option_name, option in options.items()
    if option_name not in _CLEANING_OPTIONS
  }
  default_keep_accents = None
  for option_name in options:
    if option_name not in allowed_options:
      raise UserError(
        f"{path}: its kind of tokenizer has no option {option_name!r}; it has"
        f" {sorted(allowed_options) or 'no options'}."
      )
  # How the vocabulary's training text was cleaned, as far as the files say it.
  learnt_cleaning = _cleaning_from(settings)
  if (
    learnt_cleaning.keep_accents is None
    and learnt_cleaning.lower_case is not None
  ):
    if "strip_accents" in allowed_options:
      learnt_cleaning = learnt_cleaning.with_defaults()
    elif "lower_case" in allowed_options and asked_cleaning.lower_case is None:
      # For accents, take the default of transformers' AlbertTokenizer.
      default_keep_accents = None if learnt_cleaning.lower_case else False
  if isinstance(build, functools.partial) and build.func is unigram.build:
    # The rules in a `.model` override the file of settings.
    fixed_cleaning = unigram.cleaning_in_rules(*build.args, **build.keywords)
    if fixed_cleaning.lower_case is not None:
      learnt_cleaning, default_keep_accents = fixed_cleaning, None
      if fixed_cleaning.keep_accents is None:
        learnt_cleaning = fixed_cleaning._replace(
          keep_accents=_cleaning_from(settings).keep_accents
        )
  _check_rules(settings, options, path)
  arguments = {
    option_name: settings[option_name]
    for option_name in settings.keys() & allowed_options - {*_CLEANING_OPTIONS}
  }
  if "lower_case" in allowed_options:
    cleaning.check_same_cleaning(learnt_cleaning, asked_cleaning, path)
    pairs = zip(learnt_cleaning, asked_cleaning, strict=True)
    merged_cleaning = cleaning.Cleaning(
      *(asked if learnt is None else learnt for learnt, asked in pairs)
    )
    if merged_cleaning.keep_accents is None:
      merged_cleaning = merged_cleaning._replace(
        keep_accents=default_keep_accents
      )
    return build(
      **arguments
      | _as_build_options(merged_cleaning, allowed_options)
      | options
    )
  if "keep_accents" in allowed_options:
    arguments["keep_accents"] = learnt_cleaning.keep_accents
  vocabulary = build(**arguments | options)
  actual_cleaning = cleaning.Cleaning(
    vocabulary.lower_case, vocabulary.keep_accents
  )
  cleaning.check_same_cleaning(actual_cleaning, asked_cleaning, path)
  return vocabulary


def _cleaning_from(options: Mapping[str, Any]) -> cleaning.Cleaning:
  """Returns the cleaning that settings or options ask for."""
  keep_accents = options.get("keep_accents")
  if keep_accents is None and options.get("strip_accents") is not None:
    keep_accents = not options["strip_accents"]
  return cleaning.Cleaning(options.get("lower_case"), keep_accents)


def _as_build_options(
  wanted_cleaning: cleaning.Cleaning, allowed_options: Collection[str]
) -> dict[str, bool]:
  """Returns the fields of a cleaning that are not None, as build options.

  Args:
    wanted_cleaning: the cleaning.
    allowed_options: the names of the options of the build function.
  """
  options = cleaning.options_for_load(*wanted_cleaning)
  if "strip_accents" in allowed_options and "keep_accents" in options:
    options["strip_accents"] = not options.pop("keep_accents")
  return options


def _check_rules(
  settings: Mapping[str, Any], options: Mapping[str, Any], path: str
) -> None:
  """Raises UserError if settings and options have different rules for words."""
  saved_rules, asked_rules = settings.get("rules"), options.get("rules")
  has_both = saved_rules in words.RULES and asked_rules in words.RULES
  if has_both and saved_rules != asked_rules:
    raise UserError(
      f"{path}: its words were counted with --rules={saved_rules}, not with"
      f" --rules={asked_rules}; leave this flag out, or train another"
      " vocabulary with it."
    )


def _read_settings(
  files: Mapping[str, bytes], folder: PathLike, name: str
) -> dict[str, Any]:
  """Returns the options in a file of settings; {} if there is no such file."""
  settings = file_contents.parse_file(files, folder, name)
  options = {}
  for option, option_type in _OPTION_TYPES.items():
    key = _SETTINGS_KEYS.get(option, option)
    setting = settings.get(key)
    if setting is None:  # transformers writes null if it takes its default.
      continue
    if not isinstance(setting, option_type):
      path = file_contents.path_of(folder, name)
      raise UserError(
        f"{path}: {key!r} is {setting!r:.40}, not"
        f" {'text' if option_type is str else 'true or false'}."
      )
    options[option] = setting
  return options


def _choose_build_function(
  files: Mapping[str, bytes], name: str, folder: str
) -> Callable[..., Vocabulary]:
  """Returns a function that takes options and builds the tokenizer of a file.

  Args:
    files: file name -> content.
    name: the name of the vocabulary's file.
    folder: the folder of the files, for messages.
  """
  path, content = file_contents.path_of(folder, name), files[name]
  if name == fairseq_pieces.MODEL_FILE:
    settings = file_contents.parse_file(files, folder, SETTINGS_FILE)
    tokenizer_class = str(settings.get("tokenizer_class") or "")
    return functools.partial(
      fairseq_pieces.build, content, path, tokenizer_class
    )
  if name.endswith(".model"):
    return functools.partial(unigram.build, content, source=path)
  if not name.endswith(".json"):
    pieces = parse_pieces(content, path)
    if set(words.SPECIAL_WORDS) <= set(pieces):
      return functools.partial(words.build, pieces, source=path)
    return functools.partial(wordpiece.build, pieces, source=path)
  text = file_contents.decode_file(files, folder, name)
  if name not in _PIECE_ID_FILES and _MODEL_KEY_PATTERN.search(text):
    return functools.partial(from_json, text, source=path)
  id_by_piece = bpe.check_ids(
    file_contents.parse_file(files, folder, name), path
  )
  merges_name = next(
    (file_name for file_name in _MERGES_FILES if file_name in files), None
  )
  if merges_name is None:
    raise UserError(
      f"{path} has no merges in its folder; their file must have one of"
      f" the names {_MERGES_FILES}."
    )
  merges = bpe.read_merges(
    file_contents.decode_file(files, folder, merges_name),
    file_contents.path_of(folder, merges_name),
  )
  marks_word_ends = any(
    piece.endswith(bpe.END_OF_WORD) for piece in id_by_piece
  )
  build = bpe.build_gpt1 if marks_word_ends else bpe.build_bytelevel
  return functools.partial(build, id_by_piece, merges, source=path)


def parse_pieces(content: bytes, source: str) -> list[str]:
  """Reads a vocabulary file with a piece on each line.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the file is not UTF-8 or is empty, or a piece occurs twice; the
      message names the lines.
  """
  lines = decode_utf8(content, source).split("\n")
  pieces = [line.rstrip("\r") for line in lines]
  while pieces and not pieces[-1]:
    pieces.pop()
  if not pieces:
    raise UserError(f"{source}: the vocabulary is empty.")
  index_by_piece: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if index_by_piece.setdefault(piece, i) != i:
      raise UserError(
        f"{source}: {piece!r:.40} is in line {index_by_piece[piece] + 1} and"
        f" again in line {i + 1}; every piece needs one id. Remove one of them."
      )
  return pieces


def read_vocab(path: PathLike) -> list[str]:
  """Reads a vocabulary file with a piece on each line.

  Raises:
    UserError: there is no such file, or see `parse_pieces`.
  """
  if not epath.Path(path).is_file():
    raise UserError(
      f"there is no vocabulary file {path}; make one with `bert_jax vocab`"
      ", or use a published vocab.txt."
    )
  return parse_pieces(epath.Path(path).read_bytes(), os.fspath(path))


def read_pieces(folder: PathLike) -> list[str]:
  """Reads the pieces of a prepared folder, for any kind of vocabulary.

  Raises:
    UserError: the file is missing or damaged.
  """
  path = epath.Path(folder, PIECES_FILE)
  if not path.exists():
    return read_vocab(file_contents.path_of(folder, "vocab.txt"))
  try:
    pieces = read_json(path)
  except ValueError as e:
    raise DamagedFile(f"{path} is damaged ({e}).") from e
  if not isinstance(pieces, list) or not pieces:
    raise DamagedFile(f"{path} is damaged: it is not a list of pieces.")
  if not all(isinstance(piece, str) for piece in pieces):
    raise DamagedFile(f"{path} is damaged: a piece in it is not a text.")
  return pieces


def tokenizer_files(folder: PathLike) -> list[str]:
  """Returns which of `TOKENIZER_FILES` a folder has."""
  names_in_folder = {path.name for path in epath.Path(folder).iterdir()}
  return [name for name in TOKENIZER_FILES if name in names_in_folder]


def _has_all_in_vocab_txt(vocabulary: Vocabulary) -> bool:
  """Returns True for a WordPiece vocabulary with all pieces in vocab.txt."""
  if vocabulary.algorithm != "wordpiece" or vocabulary.added_tokens:
    return False
  return "vocab.txt" in vocabulary.files


def _unusual_settings(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the settings that differ from the defaults of transformers' class.

  BertTokenizer and RobertaTokenizer build their rules from these settings, even
  if there is a `tokenizer.json`.
  """
  settings: dict[str, Any] = {}
  rules = vocabulary.plain_text_tokenizer.normalizer
  splitter = vocabulary.plain_text_tokenizer.pre_tokenizer
  if vocabulary.algorithm == "bytelevel":
    if getattr(splitter, "add_prefix_space", False):
      settings["add_prefix_space"] = True
    if _transformers_class(vocabulary) == "RobertaTokenizer":
      tokens = vocabulary.special_tokenizer.get_added_tokens_decoder()
      mask = tokens[cast(int, vocabulary.special.mask)]
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


def _transformers_class(vocabulary: Vocabulary) -> str | None:
  """Returns the name of transformers' class; None for the algorithm "words"."""
  if vocabulary.algorithm == "bytelevel" and "vocab.json" in vocabulary.files:
    has_mask = vocabulary.special.mask is not None
    return "RobertaTokenizer" if has_mask else "GPT2Tokenizer"
  if vocabulary.algorithm in ("bytelevel", "unigram"):
    return _JSON_CLASS
  return _TRANSFORMERS_CLASSES.get(vocabulary.algorithm)


def to_files(
  vocabulary: Vocabulary, with_digests: bool = True
) -> dict[str, bytes]:
  """Returns name -> content of a tokenizer's files, with the file of settings.

  Args:
    vocabulary: the tokenizer.
    with_digests: True if the settings get digests, by which `from_files`
      notices a damaged file.
  """
  contents_by_name = dict(vocabulary.files)
  if not _has_all_in_vocab_txt(vocabulary):
    pieces_json = json.dumps(list(vocabulary.pieces), ensure_ascii=False)
    contents_by_name[PIECES_FILE] = pieces_json.encode("utf-8")
  if vocabulary.other_words:
    other_words = "".join(f"{word}\n" for word in vocabulary.other_words)
    contents_by_name[OTHER_WORDS_FILE] = other_words.encode("utf-8")
  settings = {
    _SETTINGS_KEYS.get(option_name, option_name): option
    for option_name, option in vocabulary.options.items()
  }
  settings |= _unusual_settings(vocabulary)
  if tokenizer_class := _transformers_class(vocabulary):
    settings = {"tokenizer_class": tokenizer_class} | settings
  if tokenizer_class == _JSON_CLASS and vocabulary.special.mask is not None:
    roles_and_ids = vocabulary.special._asdict().items()
    settings |= {
      f"{role}_token": vocabulary.pieces[special_id]
      for role, special_id in roles_and_ids
    }
  settings |= added_tokens.settings_of(vocabulary)
  if with_digests:
    settings = _with_digests(settings, vocabulary.files)
  return contents_by_name | {SETTINGS_FILE: format_json(settings).encode()}


def digest_settings(files: Mapping[str, bytes]) -> bytes:
  """Returns a file of settings that holds only the digests of files.

  Args:
    files: file name -> content.
  """
  return format_json(_with_digests({}, files)).encode()


def _with_digests(
  settings: Mapping[str, Any], files: Mapping[str, bytes]
) -> dict[str, Any]:
  """Returns settings with the digests of files and a checksum."""
  digests = {name: content_digest(content) for name, content in files.items()}
  return add_checksum({**settings, DIGESTS_KEY: digests})


def check_digests(
  files: Mapping[str, bytes],
  folder: str,
  settings_name: str = SETTINGS_FILE,
  name: str | None = None,
) -> None:
  """Checks that files have the content that `to_files` returned.

  A file may be missing. Files that a different program wrote have no digests,
  and are not checked.

  Args:
    files: file name -> content.
    folder: the folder of the files, for messages.
    settings_name: the name of the settings among the files.
    name: the name of the vocabulary's file, if the user named it; the user may
      have renamed it.

  Raises:
    UserError: the content of a file has changed.
  """
  entries = file_contents.parse_file(files, folder, settings_name)
  # A different program writes neither key. If only one key is missing, the file
  # may be damaged.
  if DIGESTS_KEY not in entries and "checksum" not in entries:
    return
  changed_files = [settings_name]
  if has_valid_checksum(entries) and isinstance(entries.get(DIGESTS_KEY), dict):
    digests = entries[DIGESTS_KEY]
    # The user may have renamed the vocabulary's file.
    if name not in digests and len(digests) == 1:
      digests = {name: next(iter(digests.values()))}
    changed_files = [
      file_name
      for file_name in digests
      if file_name in files
      and content_digest(files[file_name]) != digests[file_name]
    ]
  if changed_files:
    path = file_contents.path_of(folder, changed_files[0])
    raise UserError(
      f"{path} is not what was written with the other files of this tokenizer."
      " Put it back; or, if you changed it on purpose, delete the keys"
      f" {DIGESTS_KEY!r} and 'checksum' of"
      f" {file_contents.path_of(folder, settings_name)}."
    )


def save(vocabulary: Vocabulary, folder: PathLike) -> None:
  """Writes all files of a tokenizer, for `load`."""
  for name, content in to_files(vocabulary).items():
    write_durably(file_contents.path_of(folder, name), content)


def meta_entries(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the entries for a tokenizer in `meta.json` of a prepared folder."""
  if _has_all_in_vocab_txt(vocabulary):
    return {}
  entries: dict[str, Any] = {"special": vocabulary.special._asdict()}
  if vocabulary.never_masked_ids:
    entries["unmasked"] = vocabulary.never_masked_ids
  if vocabulary.algorithm == "words":
    entries["others"] = len(vocabulary.other_words)
  return entries


def read_prepared_files(folder: PathLike, lower_case: bool) -> dict[str, bytes]:
  """Reads a tokenizer's files in a prepared folder.

  A folder that an earlier version of this package wrote may have no file of
  settings. Then the function makes the content of this file.

  Args:
    folder: the prepared folder.
    lower_case: True if the tokenizer changes text to lower case.

  Returns:
    Name -> content of the files, with the settings.
  """
  file_names = tokenizer_files(folder)
  contents_by_name = {
    file_name: epath.Path(folder, file_name).read_bytes()
    for file_name in file_names
  }
  if SETTINGS_FILE not in contents_by_name:
    settings = {
      "tokenizer_class": _TRANSFORMERS_CLASSES["wordpiece"],
      _SETTINGS_KEYS["lower_case"]: lower_case,
    }
    settings = _with_digests(settings, contents_by_name)
    contents_by_name[SETTINGS_FILE] = format_json(settings).encode()
  return contents_by_name


def load_prepared(folder: PathLike, lower_case: bool) -> Vocabulary:
  """Opens the tokenizer of a prepared folder, see `read_prepared_files`."""
  if epath.Path(folder, SETTINGS_FILE).exists():
    return load(folder)
  return load(folder, lower_case=lower_case)


class DifferentVocabularies(UserError):
  """An error: two vocabularies that must have equal pieces differ."""


def check_same_pieces(
  pieces: Sequence[str],
  other_pieces: Sequence[str],
  name: str,
  other_name: str,
  remedy: str,
) -> None:
  """Raises DifferentVocabularies unless two vocabularies have equal pieces.

  Args:
    pieces: the pieces of the first vocabulary.
    other_pieces: the pieces of the second vocabulary.
    name: names the first vocabulary in the message, for example by a path.
    other_name: names the second vocabulary in the message.
    remedy: the end of the message, which says what to do.
  """
  if list(pieces) != list(other_pieces):
    raise DifferentVocabularies(
      f"{name} and {other_name} have different vocabularies; {remedy}."
    )


def check_begins_with(
  pieces: Sequence[str],
  longer_pieces: Sequence[str],
  name: str,
  longer_name: str,
  remedy: str = "",
) -> None:
  """Raises DifferentVocabularies unless `pieces` come first in `longer_pieces`.

  Args:
    pieces: the pieces of the first vocabulary.
    longer_pieces: the pieces of the second vocabulary, which may have more
      pieces at its end.
    name: names the first vocabulary in the message, for example by a path.
    longer_name: names the second vocabulary in the message.
    remedy: the end of the message, which says what to do.
  """
  ending = f"; {remedy}." if remedy else "."
  for index, (piece, longer_piece) in enumerate(
    zip(pieces, longer_pieces, strict=False)
  ):
    if piece != longer_piece:
      raise DifferentVocabularies(
        f"{name}: its piece {index} is {piece!r}, but in {longer_name} it is"
        f" {longer_piece!r}{ending}"
      )
  if len(pieces) > len(longer_pieces):
    raise DifferentVocabularies(
      f"{name}: its piece {len(longer_pieces)} is"
      f" {pieces[len(longer_pieces)]!r}, and"
      f" {longer_name} has only {len(longer_pieces):,} pieces{ending}"
    )
