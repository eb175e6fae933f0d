"""Adds tokens at the end of a vocabulary.

The tokenizers library first finds the added tokens in a text. Then it cuts the
text between them into the model's pieces. The flags of a token say how it is
found:
* `single_word`: it does not match inside a word.
* `lstrip`, `rstrip`: it includes the white space before or after it.
* `normalized`: it is matched in the normalized text, for example in lower case.
* `special`: it is a special token.

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

from bert_jax.messages import DamagedFile, UserError, note_once
from bert_jax.text import file_contents
from bert_jax.text.vocabulary import (
  AddedTokenFinder,
  Vocabulary,
  copy_added,
  copy_without_added,
)

# Files of a transformers folder. `tokenizer.json` describes a tokenizer of any
# kind.
JSON, SETTINGS = "tokenizer.json", "tokenizer_config.json"
BY_ID, NAMED = "added_tokens.json", "special_tokens_map.json"
# Files that may declare tokens.
FILES = (JSON, SETTINGS, BY_ID, NAMED)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# The keys that name special tokens in transformers' files.
_ROLES = (
  *("bos_token", "eos_token", "unk_token", "sep_token"),
  *("pad_token", "cls_token", "mask_token"),
)
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
# A message writes out this many names and counts the rest.
_MAX_LISTED = 6


class Declared(NamedTuple):
  """Holds an added token as the files of a folder declare it.

  Attributes:
    token: the token's content and flags.
    number: the token's id; None if the files give a special token no id.
    source: the file that declares the token, for messages.
    bare: True if the file gives only the token's name and no flags.
  """

  token: AddedToken
  number: int | None
  source: str
  bare: bool = False


def declared(files: Mapping[str, bytes], folder: str) -> list[Declared]:
  """Reads which tokens a folder's files add, as transformers does.

  If several files declare a token, its flags come from `tokenizer_config.json`,
  or else from `tokenizer.json`, or else from `added_tokens.json`.

  Args:
    files: file name -> content; only the names in `FILES` are read.
    folder: the folder of the files, for messages.

  Returns:
    The tokens in the order of their ids, then the tokens without an id.

  Raises:
    UserError: a file is damaged, or two files give a token different ids.
  """
  contents = {name: _read(files, name, folder) for name in FILES}
  paths = {name: file_contents.path_of(folder, name) for name in FILES}
  special_by_content = _named_tokens(contents[NAMED]) | _named_tokens(
    contents[SETTINGS]
  )
  # `special_tokens_map.json` has keys such as `cls_token`, and lists of further
  # special tokens. transformers 5.24 normalizes a token that is named only in
  # these lists.
  unnormalized_contents = {
    *_named_tokens({**contents[NAMED], **dict.fromkeys(_MORE_SPECIAL)}),
    *_named_tokens(contents[SETTINGS]),
  }
  by_content: dict[str, Declared] = {}
  for name, tokens in (
    (
      BY_ID,
      _numbered_tokens(
        contents[BY_ID], special_by_content, unnormalized_contents, paths[BY_ID]
      ),
    ),
    (JSON, _json_tokens(contents[JSON], paths[JSON])),
    (SETTINGS, _settings_tokens(contents[SETTINGS], paths[SETTINGS])),
  ):
    source = paths[name]
    for token, number in tokens:
      earlier = by_content.get(token.content)
      if earlier is not None and earlier.number != number:
        raise UserError(
          f"{source}: the token {token.content!r} has the id {number}, but the"
          f" id {earlier.number} in {earlier.source}; every token needs one id."
        )
      by_content[token.content] = Declared(token, number, source)
  tokens_with_id = sorted(
    by_content.values(), key=lambda d: cast(int, d.number)
  )
  return tokens_with_id + [
    Declared(token, None, paths[SETTINGS], bare)
    for content, (token, bare) in special_by_content.items()
    if content not in by_content
  ]


def _read(files: Mapping[str, bytes], name: str, folder: str) -> dict[str, Any]:
  """Parses a file; {} if it is missing or declares no tokens."""
  if name not in files:
    return {}
  text = file_contents.decoded(files, folder, name)
  if name == JSON and '"added_tokens"' not in text:
    return {}
  return file_contents.parsed(files, folder, name)


def _named_tokens(
  settings: Mapping[str, Any],
) -> dict[str, tuple[AddedToken, bool]]:
  """Reads the special tokens that a file names.

  Returns:
    Content -> (token, True if the file gives only its name and no flags).
  """
  declarations = [settings.get(role) for role in _ROLES]
  for key in _MORE_SPECIAL:
    entries = settings.get(key) or ()
    declarations += entries.values() if isinstance(entries, dict) else entries
  tokens = {}
  for fields in declarations:
    if isinstance(fields, dict) and isinstance(fields.get("content"), str):
      tokens[fields["content"]] = make_token(fields | {"special": True}), False
    elif isinstance(fields, str) and fields:
      tokens[fields] = AddedToken(fields, normalized=False, special=True), True
  return tokens


def make_token(fields: Mapping[str, Any]) -> AddedToken:
  """Builds a token; missing flags get the defaults of the library."""
  special = bool(fields.get("special", False))
  flags = {name: bool(fields.get(name, False)) for name in FLAGS}
  flags["normalized"] = bool(fields.get("normalized", not special))
  return AddedToken(fields["content"], **flags)


def _numbered_tokens(
  numbers: Mapping[str, Any],
  named: Collection[str],
  unnormalized: Collection[str],
  path: str,
) -> list[tuple[AddedToken, int]]:
  """Returns the tokens of `added_tokens.json`, which holds no flags.

  Args:
    numbers: the content of the file: token -> id.
    named: the special tokens that other files name.
    unnormalized: the tokens that are matched in the text before normalization.
    path: the file, for messages.
  """
  tokens = []
  for content, number in numbers.items():
    if type(number) is not int or number < 0 or not content:
      raise UserError(f"{path}: not an object from tokens to ids.")
    special = content in named
    normalized = content not in unnormalized
    token = AddedToken(content, normalized=normalized, special=special)
    tokens.append((token, number))
  return tokens


def _json_tokens(
  content: Mapping[str, Any], path: str
) -> list[tuple[AddedToken, int]]:
  """Returns the tokens of `tokenizer.json` with their ids."""
  entries = content.get("added_tokens") or []
  try:
    return [(make_token(entry), _number(entry["id"])) for entry in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise DamagedFile(f"{path}: its added_tokens are damaged.") from e


def _settings_tokens(
  settings: Mapping[str, Any], path: str
) -> list[tuple[AddedToken, int]]:
  """Returns the tokens of `tokenizer_config.json` with their ids."""
  entries = settings.get("added_tokens_decoder") or {}
  try:
    return [(make_token(entries[key]), _number(key)) for key in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise DamagedFile(f"{path}: its added_tokens_decoder is damaged.") from e


def _number(entry: Any) -> int:
  """Converts the entry of a file to an id; ValueError if it is negative."""
  number = int(entry)
  if number < 0:
    raise ValueError(f"the id {number}")
  return number


def flags_of(token: AddedToken) -> dict[str, bool]:
  """Returns a token's flags: name -> value."""
  return {name: getattr(token, name) for name in FLAGS}


def apply(vocabulary: Vocabulary, tokens: Sequence[Declared]) -> Vocabulary:
  """Returns the tokenizer with the tokens that its folder's files declare.

  Args:
    vocabulary: the tokenizer. If it was built from `tokenizer.json`, it has the
      added tokens of that file already.
    tokens: the declared tokens, from `declared`.

  Raises:
    UserError: a token would get a different id than the files say, or this
      kind of tokenizer cannot have added tokens.
  """
  roles = role_tokens(vocabulary)
  if vocabulary.kind == "words" or vocabulary.clean is not None:
    # These tokenizers match the special tokens of their family only by the
    # exact spelling, and ignore the flags.
    tokens = [d for d in tokens if d.token.content not in roles]
  new_tokens = _missing(vocabulary.special_tokenizer, tokens)
  extended = add(vocabulary, new_tokens) if new_tokens else vocabulary
  _check_numbers(extended.special_tokenizer, tokens)
  return extended


def declare(tokenizer: Tokenizer, tokens: Sequence[Declared]) -> None:
  """Adds declared tokens to a tokenizer of the library, in place.

  Raises:
    UserError: see `apply`.
  """
  tokenizer.add_tokens(_missing(tokenizer, tokens))
  _check_numbers(tokenizer, tokens)
  tell_apart(tokenizer)


def tell_apart(tokenizer: Tokenizer) -> None:
  """Makes added tokens different if cleaning makes them equal.

  Tokens that are looked for in cleaned text may be equal there, for example
  COVID and covid in lower case. The library then finds only one of them; in
  another process, it may find another one. So the later tokens are changed:
  they are looked for in the raw text, by their exact spelling. The first token
  is found for all other spellings. A warning is printed for each group of equal
  tokens.

  Args:
    tokenizer: the library's tokenizer; the flags of its added tokens change.
  """
  if tokenizer.normalizer is None:
    return
  token_by_id = tokenizer.get_added_tokens_decoder()
  by_text: dict[str, list[AddedToken]] = {}
  for number in sorted(token_by_id):
    if token_by_id[number].normalized:
      text = tokenizer.normalizer.normalize_str(token_by_id[number].content)
      by_text.setdefault(text, []).append(token_by_id[number])
  for text, (first_token, *other_tokens) in by_text.items():
    if not (text and other_tokens):
      continue
    names = " and ".join(
      repr(token.content) for token in (first_token, *other_tokens)
    )
    line = (
      f"warning: the added tokens {names} are equal in the text as the"
      " tokenizer cleans it:"
    )
    longer_text = next((t for t in by_text if text in t and text != t), None)
    if longer_text is not None:
      # The library looks for tokens in the raw text first. It would find the
      # changed token inside the longer token, and so cut the longer token.
      line += (
        " each process may find a different one, and the tokenizer cannot tell"
        f" them apart, since {by_text[longer_text][0].content!r} contains them;"
        " remove one of them."
      )
    else:
      tokenizer.add_tokens([_raw(token) for token in other_tokens])
      line += (
        f" {first_token.content!r} is found in every spelling except"
        f" {listed([token.content for token in other_tokens])}."
      )
    note_once(line)


def _raw(token: AddedToken) -> AddedToken:
  """Returns a copy of a token that is looked for in the raw text."""
  return AddedToken(token.content, **flags_of(token) | {"normalized": False})


def _missing(
  tokenizer: Tokenizer, tokens: Sequence[Declared]
) -> list[AddedToken]:
  """Returns the tokens that a tokenizer lacks, or has with different flags."""
  present_tokens = tokenizer.get_added_tokens_decoder().values()
  flags_by_content = {
    token.content: flags_of(token) for token in present_tokens
  }
  missing_tokens = []
  for d in tokens:
    present_flags = flags_by_content.get(d.token.content)
    if present_flags is None or (
      not d.bare and present_flags != flags_of(d.token)
    ):
      missing_tokens.append(d.token)
  return missing_tokens


def _check_numbers(tokenizer: Tokenizer, tokens: Sequence[Declared]) -> None:
  """Raises UserError if a token's id is not the declared id."""
  for d in tokens:
    number = tokenizer.token_to_id(d.token.content)
    if d.number not in (None, number):
      raise UserError(
        f"{d.source}: the token {d.token.content!r} has the id {d.number}, but"
        f" it would get the id {number}, the next one after the other pieces;"
        " do all files belong to one model?"
      )


def role_tokens(vocabulary: Vocabulary) -> set[str]:
  """Returns the special tokens of a tokenizer's family ([CLS], [SEP], ...)."""
  size = len(vocabulary.pieces)
  numbers = {i for i in vocabulary.special if i is not None and i < size}
  return {vocabulary.pieces[i] for i in numbers}


def add(vocabulary: Vocabulary, tokens: Sequence[AddedToken]) -> Vocabulary:
  """Returns the tokenizer with new tokens after its last piece.

  Args:
    vocabulary: a tokenizer with Hugging Face's rules, of any kind except
      "words".
    tokens: the tokens in the order of their ids. A token that is a piece
      already keeps its id. A token that was added before gets the new flags.

  Raises:
    UserError: this kind of tokenizer cannot have added tokens.
  """
  if vocabulary.kind == "words" or vocabulary.clean is not None:
    rules = vocabulary.options.get("rules")
    raise UserError(
      f"a tokenizer with the rules {rules!r} has no added tokens"
      f" ({listed([token.content for token in tokens])}); leave --rules out."
    )
  if vocabulary.special_tokenizer.get_vocab_size() < vocabulary.vocab_size:
    vocabulary = _filled(vocabulary)
  with_special = copy_added(
    vocabulary.special_tokenizer,
    copy_without_added(vocabulary.special_tokenizer),
  )
  with_special.add_tokens(list(tokens))
  extended = with_added(vocabulary, with_special)
  if not extended.added_tokens:
    return extended
  # If tokenizer.json is the only file, its tokenizer has a post-processor that
  # adds the special tokens around a text.
  has_processor = {*vocabulary.files} == {JSON}
  to_write = with_special if has_processor else with_special_tokens(extended)
  files = {**vocabulary.files, JSON: to_write.to_str().encode("utf-8")}
  return dataclasses.replace(extended, files=files)


def _filled(vocabulary: Vocabulary) -> Vocabulary:
  """Adds the pieces that fill gaps between ids to the library's model.

  The library takes the number of pieces as the next free id. So ids without a
  piece would give new tokens too small ids.
  """

  def fill(tokenizer: Tokenizer) -> Tokenizer:
    content = json.loads(copy_without_added(tokenizer).to_str())
    pieces = content["model"]["vocab"]
    numbers = set(pieces.values())
    for number, piece in enumerate(vocabulary.pieces):
      if number not in numbers:
        pieces[piece] = number
    return copy_added(tokenizer, Tokenizer.from_str(json.dumps(content)))

  return dataclasses.replace(
    vocabulary,
    literal_tokenizer=fill(vocabulary.literal_tokenizer),
    special_tokenizer=fill(vocabulary.special_tokenizer),
  )


def with_added(vocabulary: Vocabulary, with_special: Tokenizer) -> Vocabulary:
  """Returns the tokenizer with all added tokens of `with_special`.

  Args:
    vocabulary: the tokenizer; `with_special` has its pieces first.
    with_special: the library's tokenizer that reads special tokens in a text
      as special tokens.

  Raises:
    UserError: an added token is spelled like another piece.
  """
  tell_apart(with_special)
  roles = role_tokens(vocabulary)
  token_by_id = with_special.get_added_tokens_decoder()
  sorted_tokens = [token_by_id[number] for number in sorted(token_by_id)]
  added = tuple(token for token in sorted_tokens if token.content not in roles)
  if not added:
    return dataclasses.replace(
      vocabulary, special_tokenizer=with_special, _caches=[{}]
    )
  plain = copy_without_added(vocabulary.literal_tokenizer)
  size = vocabulary.vocab_size
  new_pieces = [
    token_by_id[number].content
    for number in sorted(token_by_id)
    if number >= size
  ]
  pieces = [*vocabulary.pieces, *new_pieces]
  at_word_boundary = np.append(
    vocabulary.at_word_boundary, np.ones(len(new_pieces), bool)
  )
  at_word_boundary[[*token_by_id]] = True
  plain.add_tokens(_without_roles(sorted_tokens, roles, vocabulary, plain))
  # From now on `plain` reads every token with the flag `special` as text. So
  # `_without_roles` removed this flag from all but the family's special tokens.
  plain.encode_special_tokens = True
  for token in added:
    content = token.content
    if plain.token_to_id(content) != with_special.token_to_id(content):
      raise UserError(
        f"the added token {content!r} is spelled like another piece."
      )
  return dataclasses.replace(
    vocabulary,
    pieces=pieces,
    literal_tokenizer=plain,
    special_tokenizer=with_special,
    at_word_boundary=at_word_boundary,
    uncut_pattern=_finder(added, plain, _base_pattern(vocabulary)),
    added_tokens=added,
    _caches=[{}],
  )


def _base_pattern(vocabulary: Vocabulary) -> re.Pattern | None:
  """Returns `uncut_pattern` of a vocabulary before tokens were added to it."""
  pattern = vocabulary.uncut_pattern
  return (
    pattern.base_pattern if isinstance(pattern, AddedTokenFinder) else pattern
  )


def _without_roles(
  tokens: Iterable[AddedToken],
  roles: set[str],
  vocabulary: Vocabulary,
  plain: Tokenizer,
) -> list[AddedToken]:
  """Returns the tokens for `plain`, which reads the special tokens as text.

  Args:
    tokens: all added tokens in the order of their ids.
    roles: the special tokens of the family.
    vocabulary: the tokenizer, for its pieces.
    plain: the library's tokenizer to which the tokens will be added.
  """
  plain_tokens = []
  size = plain.get_vocab_size(with_added_tokens=False)
  for token in tokens:
    if token.content not in roles:
      flags = flags_of(token) | {"special": False}
      plain_tokens.append(AddedToken(token.content, **flags))
    elif vocabulary.pieces.index(token.content) >= size:
      # This special token is no piece of the library's model. If it were left
      # out, all later tokens would get too small ids.
      plain_tokens.append(token)
  return plain_tokens


def _finder(
  tokens: Sequence[AddedToken], plain: Tokenizer, base: re.Pattern | None
) -> AddedTokenFinder:
  """Returns a filter for texts that may hold one of the tokens.

  Args:
    tokens: the added tokens.
    plain: the library's tokenizer, for its normalizer.
    base: the `uncut_pattern` of the vocabulary without added tokens.
  """
  normalizer = plain.normalizer
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
    _any_of(raw_contents),
    _any_of(normalized_contents),
    normalizer,
    base,
    normalize_ascii,
  )


def _any_of(contents: Iterable[str]) -> re.Pattern | None:
  """Returns a pattern that matches any of the contents; None if all are ""."""
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


def listed(contents: Sequence[str]) -> str:
  """Lists the first few contents, and counts the rest."""
  listed_contents = ", ".join(
    repr(content) for content in contents[:_MAX_LISTED]
  )
  num_hidden = len(contents) - _MAX_LISTED
  return (
    f"{listed_contents} and {num_hidden} more"
    if num_hidden > 0
    else listed_contents
  )


def with_special_tokens(vocabulary: Vocabulary) -> Tokenizer:
  """Returns a library tokenizer that adds special tokens as transformers does.

  It encodes a text as [CLS] text [SEP], with the token names and the segments
  of this kind of tokenizer.
  """
  special, pieces = vocabulary.special, vocabulary.pieces
  if special.mask is None or special.sep is None or special.cls is None:
    return vocabulary.special_tokenizer
  tokenizer = copy_added(
    vocabulary.special_tokenizer,
    copy_without_added(vocabulary.special_tokenizer),
  )
  sep = pieces[special.sep], special.sep
  cls = pieces[special.cls], special.cls
  if vocabulary.kind == "bytelevel":
    tokenizer.post_processor = processors.RobertaProcessing(
      sep, cls, add_prefix_space=vocabulary.options["add_prefix_space"]
    )
  else:
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
  if vocabulary.kind == "wordpiece":
    tokenizer.decoder = decoders.WordPiece(prefix="##")
  return tokenizer


def settings_of(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the entries for added tokens in `tokenizer_config.json`."""
  if not vocabulary.added_tokens:
    return {}
  tokens = vocabulary.special_tokenizer.get_added_tokens_decoder()
  entries = {
    str(number): {"content": tokens[number].content, **flags_of(tokens[number])}
    for number in sorted(tokens)
  }
  settings: dict[str, Any] = {"added_tokens_decoder": entries}
  special_contents = [
    token.content for token in vocabulary.added_tokens if token.special
  ]
  if special_contents:
    settings["additional_special_tokens"] = special_contents
  return settings


def _without_later(vocabulary: Vocabulary, size: int) -> Vocabulary:
  """Returns the tokenizer without the added tokens whose id is >= `size`."""
  tokens = vocabulary.special_tokenizer.get_added_tokens_decoder()
  with_special = copy_without_added(vocabulary.special_tokenizer)
  with_special.add_tokens([tokens[i] for i in sorted(tokens) if i < size])
  base = dataclasses.replace(
    vocabulary,
    pieces=vocabulary.pieces[:size],
    literal_tokenizer=copy_without_added(vocabulary.literal_tokenizer),
    at_word_boundary=vocabulary.at_word_boundary[:size],
    uncut_pattern=_base_pattern(vocabulary),
    added_tokens=(),
    _caches=[{}],
  )
  return with_added(base, with_special)


def old_ids(
  vocabulary: Vocabulary, size: int | None = None
) -> Callable[[str], list[int]]:
  """Returns a function that cuts a new piece into old pieces.

  Args:
    vocabulary: a tokenizer.
    size: the number of old pieces; None if all pieces are old. The function
      ignores added tokens with ids from `size` on.

  Returns:
    A function from a text to ids of old pieces. It leaves out the unknown
    piece, so the list may be empty.
  """
  if size is not None and any(i >= size for i in vocabulary.added_ids):
    vocabulary = _without_later(vocabulary, size)

  def ids(piece: str) -> list[int]:
    # `encode_words` puts a space before a word, as in running text. Strip the
    # piece, because some pieces begin with that space.
    encoded, _ = vocabulary.encode_words([piece.strip()])
    return [i for i in encoded.tolist() if i != vocabulary.special.unk]

  return ids
