"""Adds tokens at the end of a vocabulary.

The tokenizers library first finds the added tokens in a text. Then it cuts the
text between them into the model's pieces. The flags of a token say how it is
found:
* `single_word`: it does not match inside a word.
* `lstrip`: the match includes the white space before the token.
* `rstrip`: the match includes the white space after the token.
* `normalized`: it is matched in the normalized text, for example in lower case.
* `special`: it is a special token, and never masked.

A transformers folder declares added tokens in `tokenizer.json`, in
`added_tokens_decoder` of `tokenizer_config.json`, in `added_tokens.json`, or as
names of special tokens.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  normalizers,
  processors,
)

from bert_jax.messages import DamagedFile, UserError, by_caller, note_once
from bert_jax.text import file_contents
from bert_jax.text.vocabulary import (
  AddedTokenFinder,
  Vocabulary,
  copy_added_tokens,
  copy_without_added_tokens,
)

# Files of a transformers folder that may declare tokens. `tokenizer.json`
# describes a tokenizer of any kind.
TOKENIZER_JSON = "tokenizer.json"
SETTINGS_JSON = "tokenizer_config.json"
ADDED_TOKENS_JSON = "added_tokens.json"
SPECIAL_TOKENS_JSON = "special_tokens_map.json"
DECLARING_FILES = (
  TOKENIZER_JSON,
  SETTINGS_JSON,
  ADDED_TOKENS_JSON,
  SPECIAL_TOKENS_JSON,
)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# The keys of transformers' files that name one special token, and the keys that
# list several.
_SPECIAL_KEYS = (
  *("bos_token", "eos_token", "unk_token", "sep_token"),
  *("pad_token", "cls_token", "mask_token"),
)
_SPECIAL_LIST_KEYS = ("additional_special_tokens", "extra_special_tokens")
# A message names at most this many tokens, and gives the number of the rest.
_MAX_LISTED = 6


class DeclaredToken(NamedTuple):
  """Holds an added token as the files of a folder declare it.

  Attributes:
    token: the token's content and flags.
    token_id: the token's id; None if the files give a special token no id.
    source: the file that declares the token, for messages.
    has_name_only: True if the file gives the token's text, but no flags.
  """

  token: AddedToken
  token_id: int | None
  source: str
  has_name_only: bool = False


def read_declared_tokens(
  files: Mapping[str, bytes], folder: str
) -> list[DeclaredToken]:
  """Reads which tokens a folder's files add, as transformers does.

  If several files declare a token, the token's flags come from the first of
  `tokenizer_config.json`, `tokenizer.json` and `added_tokens.json` that
  declares it.

  Args:
    files: file name -> content; only the names in `DECLARING_FILES` are read.
    folder: the folder of the files, for messages.

  Returns:
    The tokens in the order of their ids, then the tokens without an id.

  Raises:
    UserError: a file is damaged, or two files give a token different ids.
  """
  content_by_file = {
    name: _parse_declaring_file(files, name, folder) for name in DECLARING_FILES
  }
  paths = {
    name: file_contents.path_of(folder, name) for name in DECLARING_FILES
  }
  special_by_content = _read_special_tokens(
    content_by_file[SPECIAL_TOKENS_JSON]
  ) | _read_special_tokens(content_by_file[SETTINGS_JSON])
  # `special_tokens_map.json` has keys such as `cls_token`, and also lists of
  # special tokens (`_SPECIAL_LIST_KEYS`). If a token is only in these lists,
  # transformers 5.24 looks for it in the normalized text.
  unnormalized_contents = {
    *_read_special_tokens(
      {
        **content_by_file[SPECIAL_TOKENS_JSON],
        **dict.fromkeys(_SPECIAL_LIST_KEYS),
      }
    ),
    *_read_special_tokens(content_by_file[SETTINGS_JSON]),
  }
  declared_by_content: dict[str, DeclaredToken] = {}
  # The flags in a later file of this list override those in an earlier file.
  for name, tokens in (
    (
      ADDED_TOKENS_JSON,
      _added_json_tokens(
        content_by_file[ADDED_TOKENS_JSON],
        special_by_content,
        unnormalized_contents,
        paths[ADDED_TOKENS_JSON],
      ),
    ),
    (
      TOKENIZER_JSON,
      _tokenizer_json_tokens(
        content_by_file[TOKENIZER_JSON], paths[TOKENIZER_JSON]
      ),
    ),
    (
      SETTINGS_JSON,
      _settings_tokens(content_by_file[SETTINGS_JSON], paths[SETTINGS_JSON]),
    ),
  ):
    source = paths[name]
    for token, token_id in tokens:
      earlier_declaration = declared_by_content.get(token.content)
      if (
        earlier_declaration is not None
        and earlier_declaration.token_id != token_id
      ):
        raise UserError(
          f"{source}: the token {token.content!r} has the id {token_id}, but"
          f" the id {earlier_declaration.token_id} in"
          f" {earlier_declaration.source}; use one id in both."
        )
      declared_by_content[token.content] = DeclaredToken(
        token, token_id, source
      )
  tokens_with_id = sorted(
    declared_by_content.values(),
    key=lambda declared_token: cast(int, declared_token.token_id),
  )
  return tokens_with_id + [
    DeclaredToken(token, None, paths[SETTINGS_JSON], has_name_only)
    for content, (token, has_name_only) in special_by_content.items()
    if content not in declared_by_content
  ]


def _parse_declaring_file(
  files: Mapping[str, bytes], name: str, folder: str
) -> dict[str, Any]:
  """Returns the JSON object in a file; {} if it is missing or has no tokens."""
  if name not in files:
    return {}
  text = file_contents.decode_file(files, folder, name)
  if name == TOKENIZER_JSON and '"added_tokens"' not in text:
    return {}
  return file_contents.parse_file(files, folder, name)


def _read_special_tokens(
  settings: Mapping[str, Any],
) -> dict[str, tuple[AddedToken, bool]]:
  """Reads the special tokens that a file names.

  Args:
    settings: the JSON object in the file.

  Returns:
    The text of a token -> (token, True if the file gives no flags for it).
  """
  declarations = [settings.get(key) for key in _SPECIAL_KEYS]
  for key in _SPECIAL_LIST_KEYS:
    entries = settings.get(key) or ()
    declarations += entries.values() if isinstance(entries, dict) else entries
  tokens_by_content = {}
  for declaration in declarations:
    if isinstance(declaration, dict) and isinstance(
      declaration.get("content"), str
    ):
      tokens_by_content[declaration["content"]] = (
        make_token(declaration | {"special": True}),
        False,
      )
    elif isinstance(declaration, str) and declaration:
      tokens_by_content[declaration] = (
        AddedToken(declaration, normalized=False, special=True),
        True,
      )
  return tokens_by_content


def make_token(fields: Mapping[str, Any]) -> AddedToken:
  """Builds a token from its entry in a file; missing flags get defaults."""
  is_special = bool(fields.get("special", False))
  flags = {name: bool(fields.get(name, False)) for name in FLAGS}
  flags["normalized"] = bool(fields.get("normalized", not is_special))
  return AddedToken(fields["content"], **flags)


def _added_json_tokens(
  id_by_content: Mapping[str, Any],
  special_contents: Collection[str],
  unnormalized_contents: Collection[str],
  path: str,
) -> list[tuple[AddedToken, int]]:
  """Returns (token, id) for the tokens of `added_tokens.json`.

  The file holds no flags.

  Args:
    id_by_content: the content of the file: token -> id.
    special_contents: the special tokens that the folder's files name.
    unnormalized_contents: the tokens that are matched in the text before it is
      normalized.
    path: the file, for messages.
  """
  tokens = []
  for content, token_id in id_by_content.items():
    if type(token_id) is not int or token_id < 0 or not content:
      raise UserError(
        f"{path} must be a JSON object with a token and its id in each entry."
      )
    is_special = content in special_contents
    is_normalized = content not in unnormalized_contents
    token = AddedToken(content, normalized=is_normalized, special=is_special)
    tokens.append((token, token_id))
  return tokens


def _tokenizer_json_tokens(
  content: Mapping[str, Any], path: str
) -> list[tuple[AddedToken, int]]:
  """Returns (token, id) for the added tokens of `tokenizer.json`."""
  entries = content.get("added_tokens") or []
  try:
    return [(make_token(entry), _parse_id(entry["id"])) for entry in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise DamagedFile(f"{path}: its added_tokens are damaged.") from e


def _settings_tokens(
  settings: Mapping[str, Any], path: str
) -> list[tuple[AddedToken, int]]:
  """Returns (token, id) for the added tokens of `tokenizer_config.json`."""
  entries = settings.get("added_tokens_decoder") or {}
  try:
    return [(make_token(entries[key]), _parse_id(key)) for key in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise DamagedFile(f"{path}: its added_tokens_decoder is damaged.") from e


def _parse_id(entry: Any) -> int:
  """Converts the entry of a file to an id.

  Raises:
    ValueError: the entry is no number, or is negative.
  """
  token_id = int(entry)
  if token_id < 0:
    raise ValueError(f"the id {token_id} is negative")
  return token_id


def flags_of(token: AddedToken) -> dict[str, bool]:
  """Returns a token's flags: name -> value."""
  return {name: getattr(token, name) for name in FLAGS}


def add_declared_tokens(
  vocabulary: Vocabulary, tokens: Sequence[DeclaredToken]
) -> Vocabulary:
  """Returns the tokenizer with the tokens that its folder's files declare.

  Args:
    vocabulary: the tokenizer. If it was built from `tokenizer.json`, it has the
      added tokens of that file already.
    tokens: the declared tokens, from `read_declared_tokens`.

  Raises:
    UserError: a token would get a different id than the files say, or this
      kind of tokenizer cannot have added tokens.
  """
  family_tokens = family_special_tokens(vocabulary)
  if vocabulary.algorithm == "words" or vocabulary.clean is not None:
    # These tokenizers match the special tokens of their family only by the
    # exact spelling, and ignore the flags.
    tokens = [
      declared_token
      for declared_token in tokens
      if declared_token.token.content not in family_tokens
    ]
  new_tokens = _missing_tokens(vocabulary.special_tokenizer, tokens)
  extended = add_tokens(vocabulary, new_tokens) if new_tokens else vocabulary
  _check_ids(extended.special_tokenizer, tokens)
  return extended


def add_declared_in_place(
  tokenizer: Tokenizer, tokens: Sequence[DeclaredToken]
) -> None:
  """Adds declared tokens to a tokenizer of the library, in place.

  Raises:
    UserError: see `add_declared_tokens`.
  """
  tokenizer.add_tokens(_missing_tokens(tokenizer, tokens))
  _check_ids(tokenizer, tokens)
  make_distinct(tokenizer)


def make_distinct(tokenizer: Tokenizer) -> None:
  """Makes added tokens different if cleaning makes them equal.

  Two tokens that are looked for in cleaned text may be equal in this text, for
  example COVID and covid in lower case. The library then finds only one of the
  equal tokens, and two processes may find different ones. So all equal tokens
  but the first are changed: they are looked for in the raw text, by their exact
  spelling. The first token is found in all other spellings. If an added token
  contains the equal tokens and is longer, the equal tokens are not changed. A
  warning is printed for each group of equal tokens.

  Args:
    tokenizer: the library's tokenizer; the flags of its added tokens change.
  """
  if tokenizer.normalizer is None:
    return
  token_by_id = tokenizer.get_added_tokens_decoder()
  tokens_by_text: dict[str, list[AddedToken]] = {}
  for token_id in sorted(token_by_id):
    if token_by_id[token_id].normalized:
      text = tokenizer.normalizer.normalize_str(token_by_id[token_id].content)
      tokens_by_text.setdefault(text, []).append(token_by_id[token_id])
  for text, (first_token, *other_tokens) in tokens_by_text.items():
    if not (text and other_tokens):
      continue
    quoted_tokens = " and ".join(
      repr(token.content) for token in (first_token, *other_tokens)
    )
    warning = (
      f"warning: the added tokens {quoted_tokens} are equal in the text as the"
      " tokenizer cleans it;"
    )
    longer_text = next(
      (
        other_text
        for other_text in tokens_by_text
        if text in other_text and text != other_text
      ),
      None,
    )
    if longer_text is not None:
      # The library looks for tokens in the raw text first. It would find the
      # changed token inside the longer token, and so cut the longer token.
      longer_token = tokens_by_text[longer_text][0]
      warning += (
        " each process may find a different one, and the tokenizer cannot tell"
        f" them apart, since {longer_token.content!r} contains them; remove one"
        " of them."
      )
    else:
      tokenizer.add_tokens(
        [_without_normalization(token) for token in other_tokens]
      )
      warning += (
        f" {first_token.content!r} is found in every spelling except"
        f" {short_list([token.content for token in other_tokens])}."
      )
    note_once(warning)


def _without_normalization(token: AddedToken) -> AddedToken:
  """Returns a copy of a token; the copy is looked for in the raw text."""
  return AddedToken(token.content, **flags_of(token) | {"normalized": False})


def _missing_tokens(
  tokenizer: Tokenizer, tokens: Sequence[DeclaredToken]
) -> list[AddedToken]:
  """Returns the declared tokens that a tokenizer lacks or has with other flags.

  If a file gives only the text of a token, its flags are not compared.
  """
  present_tokens = tokenizer.get_added_tokens_decoder().values()
  flags_by_content = {
    token.content: flags_of(token) for token in present_tokens
  }
  missing_tokens = []
  for declared_token in tokens:
    present_flags = flags_by_content.get(declared_token.token.content)
    if present_flags is None or (
      not declared_token.has_name_only
      and present_flags != flags_of(declared_token.token)
    ):
      missing_tokens.append(declared_token.token)
  return missing_tokens


def _check_ids(tokenizer: Tokenizer, tokens: Sequence[DeclaredToken]) -> None:
  """Raises UserError if a token's id is not the declared id."""
  for declared_token in tokens:
    content = declared_token.token.content
    actual_id = tokenizer.token_to_id(content)
    if declared_token.token_id not in (None, actual_id):
      raise UserError(
        f"{declared_token.source}: the token {content!r} has the id"
        f" {declared_token.token_id}, but it would get the id {actual_id}, the"
        " next one after the other pieces; use files that all belong to one"
        " model."
      )


def family_special_tokens(vocabulary: Vocabulary) -> set[str]:
  """Returns the special tokens of a tokenizer's family ([CLS], [SEP], ...)."""
  num_pieces = len(vocabulary.pieces)
  special_ids = {
    special_id
    for special_id in vocabulary.special
    if special_id is not None and special_id < num_pieces
  }
  return {vocabulary.pieces[special_id] for special_id in special_ids}


def add_tokens(
  vocabulary: Vocabulary, tokens: Sequence[AddedToken]
) -> Vocabulary:
  """Returns the tokenizer with new tokens after its last piece.

  Args:
    vocabulary: a tokenizer with Hugging Face's rules, of any kind except
      "words".
    tokens: the tokens in the order of their ids. A token that is a piece
      already keeps its id. A token that was added before gets the new flags.

  Raises:
    UserError: this kind of tokenizer cannot have added tokens.
  """
  if vocabulary.algorithm == "words" or vocabulary.clean is not None:
    rules = vocabulary.options.get("rules")
    raise UserError(
      f"a tokenizer with the rules {rules!r} cannot have added tokens"
      f" ({short_list([token.content for token in tokens])});"
      f" {by_caller('leave out --rules', 'choose another vocabulary')}."
    )
  if vocabulary.special_tokenizer.get_vocab_size() < vocabulary.vocab_size:
    vocabulary = _fill_id_gaps(vocabulary)
  special_tokenizer = copy_added_tokens(
    vocabulary.special_tokenizer,
    copy_without_added_tokens(vocabulary.special_tokenizer),
  )
  special_tokenizer.add_tokens(list(tokens))
  extended = take_library_tokens(vocabulary, special_tokenizer)
  if not extended.added_tokens:
    return extended
  # If tokenizer.json is the only file, its tokenizer has a post-processor that
  # adds the special tokens around a text.
  has_processor = {*vocabulary.files} == {TOKENIZER_JSON}
  tokenizer_to_write = (
    special_tokenizer if has_processor else make_model_tokenizer(extended)
  )
  files = {
    **vocabulary.files,
    TOKENIZER_JSON: tokenizer_to_write.to_str().encode("utf-8"),
  }
  return dataclasses.replace(extended, files=files)


def _fill_id_gaps(vocabulary: Vocabulary) -> Vocabulary:
  """Adds the pieces that fill gaps between ids to the library's model.

  The library takes the number of pieces as the next free id. Without these
  pieces, the ids of new tokens would be too small.
  """

  def fill(tokenizer: Tokenizer) -> Tokenizer:
    content = json.loads(copy_without_added_tokens(tokenizer).to_str())
    id_by_piece = content["model"]["vocab"]
    used_ids = set(id_by_piece.values())
    for token_id, piece in enumerate(vocabulary.pieces):
      if token_id not in used_ids:
        id_by_piece[piece] = token_id
    return copy_added_tokens(tokenizer, Tokenizer.from_str(json.dumps(content)))

  return dataclasses.replace(
    vocabulary,
    plain_text_tokenizer=fill(vocabulary.plain_text_tokenizer),
    special_tokenizer=fill(vocabulary.special_tokenizer),
  )


def take_library_tokens(
  vocabulary: Vocabulary, special_tokenizer: Tokenizer
) -> Vocabulary:
  """Returns the tokenizer with all added tokens of `special_tokenizer`.

  Args:
    vocabulary: the tokenizer; its pieces have the first ids of
      `special_tokenizer`.
    special_tokenizer: the library's tokenizer that reads `[SEP]` in a text as
      the special token.

  Raises:
    UserError: an added token is spelled like a piece with a different id.
  """
  make_distinct(special_tokenizer)
  family_tokens = family_special_tokens(vocabulary)
  token_by_id = special_tokenizer.get_added_tokens_decoder()
  sorted_tokens = [token_by_id[token_id] for token_id in sorted(token_by_id)]
  non_family_tokens = tuple(
    token for token in sorted_tokens if token.content not in family_tokens
  )
  if not non_family_tokens:
    return dataclasses.replace(
      vocabulary, special_tokenizer=special_tokenizer, _caches=[{}]
    )
  plain_text_tokenizer = copy_without_added_tokens(
    vocabulary.plain_text_tokenizer
  )
  num_old_pieces = vocabulary.vocab_size
  new_pieces = [
    token_by_id[token_id].content
    for token_id in sorted(token_by_id)
    if token_id >= num_old_pieces
  ]
  pieces = [*vocabulary.pieces, *new_pieces]
  at_word_boundary = np.append(
    vocabulary.at_word_boundary, np.ones(len(new_pieces), bool)
  )
  at_word_boundary[[*token_by_id]] = True
  plain_text_tokenizer.add_tokens(
    _tokens_for_plain_text(
      sorted_tokens, family_tokens, vocabulary, plain_text_tokenizer
    )
  )
  # With this setting, `plain_text_tokenizer` reads tokens with the flag
  # `special` as text. So `_tokens_for_plain_text` removed this flag from all
  # tokens except the special tokens of the family.
  plain_text_tokenizer.encode_special_tokens = True
  for token in non_family_tokens:
    content = token.content
    if plain_text_tokenizer.token_to_id(
      content
    ) != special_tokenizer.token_to_id(content):
      raise UserError(
        f"the added token {content!r} is spelled like another piece; remove it."
      )
  return dataclasses.replace(
    vocabulary,
    pieces=pieces,
    plain_text_tokenizer=plain_text_tokenizer,
    special_tokenizer=special_tokenizer,
    at_word_boundary=at_word_boundary,
    uncut_pattern=_make_finder(
      non_family_tokens, plain_text_tokenizer, _base_pattern(vocabulary)
    ),
    added_tokens=non_family_tokens,
    _caches=[{}],
  )


def _base_pattern(vocabulary: Vocabulary) -> re.Pattern | None:
  """Returns the `uncut_pattern` that a vocabulary has without added tokens."""
  pattern = vocabulary.uncut_pattern
  return (
    pattern.base_pattern if isinstance(pattern, AddedTokenFinder) else pattern
  )


def _tokens_for_plain_text(
  tokens: Iterable[AddedToken],
  family_tokens: set[str],
  vocabulary: Vocabulary,
  plain_text_tokenizer: Tokenizer,
) -> list[AddedToken]:
  """Returns the added tokens that `plain_text_tokenizer` needs.

  `plain_text_tokenizer` reads the special tokens of the family as text. It has
  such a token only if the ids of later tokens depend on it.

  Args:
    tokens: all added tokens in the order of their ids.
    family_tokens: the special tokens of the family.
    vocabulary: the tokenizer, for its pieces.
    plain_text_tokenizer: the library's tokenizer, to which the caller adds the
      tokens.
  """
  tokens_for_plain_text = []
  num_model_pieces = plain_text_tokenizer.get_vocab_size(
    with_added_tokens=False
  )
  for token in tokens:
    if token.content not in family_tokens:
      flags = flags_of(token) | {"special": False}
      tokens_for_plain_text.append(AddedToken(token.content, **flags))
    elif vocabulary.pieces.index(token.content) >= num_model_pieces:
      # The library's model does not have this special token as a piece. If it
      # were left out, all later tokens would get too small ids.
      tokens_for_plain_text.append(token)
  return tokens_for_plain_text


def _make_finder(
  tokens: Sequence[AddedToken],
  plain_text_tokenizer: Tokenizer,
  base_pattern: re.Pattern | None,
) -> AddedTokenFinder:
  """Returns a finder of texts that may hold one of the tokens.

  Args:
    tokens: the added tokens.
    plain_text_tokenizer: the library's tokenizer, for its normalizer.
    base_pattern: the `uncut_pattern` of the vocabulary without added tokens.
  """
  normalizer = plain_text_tokenizer.normalizer
  raw_contents = [token.content for token in tokens if not token.normalized]
  normalized_contents = [token.content for token in tokens if token.normalized]
  if normalizer is not None:
    normalized_contents = [
      normalizer.normalize_str(content) for content in normalized_contents
    ]
  normalize_ascii = None
  if isinstance(normalizer, normalizers.BertNormalizer):
    normalize_ascii = str.lower if normalizer.lowercase else str
  return AddedTokenFinder(
    _pattern_of_any(raw_contents),
    _pattern_of_any(normalized_contents),
    normalizer,
    base_pattern,
    normalize_ascii,
  )


def _pattern_of_any(contents: Iterable[str]) -> re.Pattern | None:
  """Returns a pattern for any of the contents; None if no text is in them."""
  contents = sorted({content for content in contents if content})
  return re.compile(_branches(contents, 3)) if contents else None


def _branches(contents: Sequence[str], depth: int) -> str:
  """Returns a pattern that matches any of the contents.

  Contents with the same first characters share a branch. Otherwise the pattern
  would try thousands of branches at every character of a text.

  Args:
    contents: the sorted contents. An empty string matches everywhere.
    depth: the number of first characters that are shared.
  """
  if not contents[0]:
    return ""
  if not depth or len(contents) == 1:
    return "|".join(map(re.escape, contents))
  return "|".join(
    f"{re.escape(first)}(?:{_branches([c[1:] for c in group], depth - 1)})"
    for first, group in itertools.groupby(contents, lambda c: c[0])
  )


def short_list(contents: Sequence[str]) -> str:
  """Returns a text with at most `_MAX_LISTED` contents; it counts the rest."""
  listed_contents = ", ".join(
    repr(content) for content in contents[:_MAX_LISTED]
  )
  num_hidden = len(contents) - _MAX_LISTED
  return (
    f"{listed_contents} and {num_hidden} more"
    if num_hidden > 0
    else listed_contents
  )


def make_model_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
  """Returns a library tokenizer that adds special tokens as transformers does.

  The returned tokenizer encodes a text as [CLS] text [SEP], with the special
  tokens and the segment ids of the algorithm. If the vocabulary has no [CLS],
  [SEP] or [MASK], the function returns `special_tokenizer`, which adds no
  special tokens.
  """
  special, pieces = vocabulary.special, vocabulary.pieces
  if special.mask is None or special.sep is None or special.cls is None:
    return vocabulary.special_tokenizer
  tokenizer = copy_added_tokens(
    vocabulary.special_tokenizer,
    copy_without_added_tokens(vocabulary.special_tokenizer),
  )
  sep_and_id = pieces[special.sep], special.sep
  cls_and_id = pieces[special.cls], special.cls
  if vocabulary.algorithm == "bytelevel":
    tokenizer.post_processor = processors.RobertaProcessing(
      sep_and_id,
      cls_and_id,
      add_prefix_space=vocabulary.options["add_prefix_space"],
    )
  else:
    tokenizer.post_processor = processors.BertProcessing(sep_and_id, cls_and_id)
  if vocabulary.algorithm == "wordpiece":
    tokenizer.decoder = decoders.WordPiece(prefix="##")
  return tokenizer


def settings_of(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the entries that declare added tokens in tokenizer_config.json."""
  if not vocabulary.added_tokens:
    return {}
  token_by_id = vocabulary.special_tokenizer.get_added_tokens_decoder()
  entries = {
    str(token_id): {
      "content": token_by_id[token_id].content,
      **flags_of(token_by_id[token_id]),
    }
    for token_id in sorted(token_by_id)
  }
  settings: dict[str, Any] = {"added_tokens_decoder": entries}
  special_contents = [
    token.content for token in vocabulary.added_tokens if token.special
  ]
  if special_contents:
    settings["additional_special_tokens"] = special_contents
  return settings


def _without_tokens_from(vocabulary: Vocabulary, size: int) -> Vocabulary:
  """Returns the tokenizer without the added tokens whose id is >= `size`."""
  token_by_id = vocabulary.special_tokenizer.get_added_tokens_decoder()
  special_tokenizer = copy_without_added_tokens(vocabulary.special_tokenizer)
  special_tokenizer.add_tokens(
    [
      token_by_id[token_id]
      for token_id in sorted(token_by_id)
      if token_id < size
    ]
  )
  base_vocabulary = dataclasses.replace(
    vocabulary,
    pieces=vocabulary.pieces[:size],
    plain_text_tokenizer=copy_without_added_tokens(
      vocabulary.plain_text_tokenizer
    ),
    at_word_boundary=vocabulary.at_word_boundary[:size],
    uncut_pattern=_base_pattern(vocabulary),
    added_tokens=(),
    _caches=[{}],
  )
  return take_library_tokens(base_vocabulary, special_tokenizer)


def old_piece_cutter(
  vocabulary: Vocabulary, size: int | None = None
) -> Callable[[str], list[int]]:
  """Returns a function that cuts the text of a new piece into old pieces.

  Args:
    vocabulary: a tokenizer.
    size: the number of old pieces; None if all pieces are old. The function
      ignores added tokens with ids from `size` on.

  Returns:
    A function from a text to the ids of old pieces. The function leaves out the
    unknown piece, so the list of ids may be empty.
  """
  if size is not None and any(
    token_id >= size for token_id in vocabulary.added_ids
  ):
    vocabulary = _without_tokens_from(vocabulary, size)

  def cut(piece: str) -> list[int]:
    # `encode_words` puts a space before a word, as in running text. Some pieces
    # begin with a space already, so remove it first.
    ids, _ = vocabulary.encode_words([piece.strip()])
    return [
      token_id
      for token_id in ids.tolist()
      if token_id != vocabulary.special.unk
    ]

  return cut
