"""Tokens that are added to a vocabulary at its end.

The library looks for them before the model's own pieces, each by its flags:
`single_word` (not inside of a word), `lstrip` and `rstrip` (with the white
space before or after it), `normalized` (in the text as the model sees it, in
lower case for example), `special`. A folder of transformers declares them in
`tokenizer.json`, in `added_tokens_decoder` of `tokenizer_config.json`, in
`added_tokens.json`, or as names of special tokens.
"""

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  normalizers,
  processors,
)

from bert_jax.data import bpe
from bert_jax.data.tokenizer import (
  Holds,
  Vocabulary,
  added_to,
  share,
)

# transformers' own file of a tokenizer of any kind, and those beside it.
JSON, SETTINGS = "tokenizer.json", "tokenizer_config.json"
BY_ID, NAMED = "added_tokens.json", "special_tokens_map.json"
# Files that may declare tokens.
FILES = (JSON, SETTINGS, BY_ID, NAMED)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Keys whose values are special tokens, with transformers' names.
_ROLES = (
  *("bos_token", "eos_token", "unk_token", "sep_token"),
  *("pad_token", "cls_token", "mask_token"),
)
_MORE = ("additional_special_tokens", "extra_special_tokens")
# Names that a message writes out; the others are counted.
_SHOWN = 6


class Declared(NamedTuple):
  """A token as a folder's files have it.

  Attributes:
    token: its content and flags.
    number: its id; None for a special token that the files only name.
    source: the file, for messages.
    bare: whether the file has the name alone, without flags.
  """

  token: AddedToken
  number: int | None
  source: str
  bare: bool = False


def declared(files: Mapping[str, bytes], folder: str) -> list[Declared]:
  """Reads which tokens a folder's files add, as transformers does.

  Where two files have a token, the flags of the settings come first, then those
  of `tokenizer.json`, then those of `added_tokens.json`.

  Args:
    files: name -> content; others than `FILES` are not read.
    folder: where they are, for messages.

  Returns:
    The tokens by their ids, then those without one.

  Raises:
    ValueError: a file is damaged, or two files give a token different ids.
  """
  read = {name: _read(files, name, folder) for name in FILES}
  named = _named(read[NAMED]) | _named(read[SETTINGS])
  # transformers 5.24 normalises what `special_tokens_map.json` alone lists
  # beside the family's roles.
  raw = {
    *_named({**read[NAMED], **dict.fromkeys(_MORE)}),
    *_named(read[SETTINGS]),
  }
  made: dict[str, Declared] = {}
  for name, tokens in (
    (BY_ID, _by_id(read[BY_ID], named, raw, os.path.join(folder, BY_ID))),
    (JSON, _of_json(read[JSON], os.path.join(folder, JSON))),
    (SETTINGS, _of_settings(read[SETTINGS], os.path.join(folder, SETTINGS))),
  ):
    source = os.path.join(folder, name)
    for token, number in tokens:
      old = made.get(token.content)
      if old is not None and old.number != number:
        raise ValueError(
          f"{source}: the token {token.content!r} has the id {number},"
          f" {old.number} in {old.source}; every token needs one id."
        )
      made[token.content] = Declared(token, number, source)
  numbered = sorted(made.values(), key=lambda d: d.number)
  source = os.path.join(folder, SETTINGS)
  return numbered + [
    Declared(token, None, source, bare)
    for content, (token, bare) in named.items()
    if content not in made
  ]


def _read(files: Mapping[str, bytes], name: str, folder: str) -> dict[str, Any]:
  if name not in files:
    return {}
  path = os.path.join(folder, name)
  try:
    text = files[name].decode("utf-8")
  except UnicodeDecodeError as e:
    raise ValueError(f"{path}: not UTF-8 (byte {e.start}).") from e
  if name == JSON and '"added_tokens"' not in text:
    return {}
  return bpe.read_json(text, path)


def _named(settings: Mapping[str, Any]) -> dict[str, tuple[AddedToken, bool]]:
  """Content -> (token, whether it is a name alone) of special tokens."""
  values = [settings.get(role) for role in _ROLES]
  for key in _MORE:
    more = settings.get(key) or ()
    values += more.values() if isinstance(more, dict) else more
  made = {}
  for value in values:
    if isinstance(value, dict) and isinstance(value.get("content"), str):
      made[value["content"]] = make_token(value | {"special": True}), False
    elif isinstance(value, str) and value:
      made[value] = AddedToken(value, normalized=False, special=True), True
  return made


def make_token(fields: Mapping[str, Any]) -> AddedToken:
  """Builds a token; flags that `fields` lacks are the library's defaults."""
  special = bool(fields.get("special", False))
  flags = {name: bool(fields.get(name, False)) for name in FLAGS}
  flags["normalized"] = bool(fields.get("normalized", not special))
  return AddedToken(fields["content"], **flags)


def _by_id(
  numbers: Mapping[str, Any],
  named: Collection[str],
  raw: Collection[str],
  where: str,
) -> list[tuple[AddedToken, int]]:
  """The tokens of `added_tokens.json`, whose flags are not in it.

  Args:
    numbers: what the file holds.
    named: the special tokens that other files name.
    raw: those that are looked for in the raw text.
    where: the file, for messages.
  """
  made = []
  for content, number in numbers.items():
    if type(number) is not int or number < 0 or not content:
      raise ValueError(f"{where}: not an object from tokens to ids.")
    special = content in named
    normalized = content not in raw
    token = AddedToken(content, normalized=normalized, special=special)
    made.append((token, number))
  return made


def _of_json(
  content: Mapping[str, Any], where: str
) -> list[tuple[AddedToken, int]]:
  entries = content.get("added_tokens") or []
  try:
    return [(make_token(entry), _number(entry["id"])) for entry in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise ValueError(f"{where}: its added_tokens are damaged.") from e


def _of_settings(
  settings: Mapping[str, Any], where: str
) -> list[tuple[AddedToken, int]]:
  entries = settings.get("added_tokens_decoder") or {}
  try:
    return [(make_token(entries[key]), _number(key)) for key in entries]
  except (KeyError, TypeError, ValueError) as e:
    raise ValueError(f"{where}: its added_tokens_decoder is damaged.") from e


def _number(value: Any) -> int:
  number = int(value)
  if number < 0:
    raise ValueError(f"the id {number}")
  return number


def flags_of(token: AddedToken) -> dict[str, bool]:
  """Name -> value of a token's flags."""
  return {name: getattr(token, name) for name in FLAGS}


def apply(vocabulary: Vocabulary, tokens: Sequence[Declared]) -> Vocabulary:
  """Returns a tokenizer that reads the tokens of its folder's files.

  Args:
    vocabulary: a tokenizer without them, or `tokenizer.json`'s, which has those
      of that file.
    tokens: from `declared`.

  Raises:
    ValueError: a token would get another id than the files say, or the kind of
      tokenizer has no added tokens.
  """
  roles = role_tokens(vocabulary)
  if vocabulary.kind == "words" or vocabulary.clean is not None:
    # Their rules know special tokens by the exact spelling alone.
    tokens = [d for d in tokens if d.token.content not in roles]
  new = _not_yet(vocabulary.marked, tokens)
  result = add(vocabulary, new) if new else vocabulary
  _check_numbers(result.marked, tokens)
  return result


def declare(tokenizer: Tokenizer, tokens: Sequence[Declared]) -> None:
  """Adds the tokens of a folder's files to the library's tokenizer.

  Raises:
    ValueError: see `apply`.
  """
  tokenizer.add_tokens(_not_yet(tokenizer, tokens))
  _check_numbers(tokenizer, tokens)


def _not_yet(
  tokenizer: Tokenizer, tokens: Sequence[Declared]
) -> list[AddedToken]:
  """The tokens that a tokenizer lacks, or has with other flags."""
  there = tokenizer.get_added_tokens_decoder().values()
  flags = {token.content: flags_of(token) for token in there}
  new = []
  for d in tokens:
    old = flags.get(d.token.content)
    if old is None or (not d.bare and old != flags_of(d.token)):
      new.append(d.token)
  return new


def _check_numbers(tokenizer: Tokenizer, tokens: Sequence[Declared]) -> None:
  for d in tokens:
    number = tokenizer.token_to_id(d.token.content)
    if d.number not in (None, number):
      raise ValueError(
        f"{d.source}: the token {d.token.content!r} has the id {d.number}, but"
        f" by the pieces before it the id is {number}; are all files of one"
        " model?"
      )


def role_tokens(vocabulary: Vocabulary) -> set[str]:
  """The special tokens of a tokenizer's family."""
  size = len(vocabulary.pieces)
  numbers = {i for i in vocabulary.special if i is not None and i < size}
  return {vocabulary.pieces[i] for i in numbers}


def add(vocabulary: Vocabulary, tokens: Sequence[AddedToken]) -> Vocabulary:
  """Returns the tokenizer with tokens after its last piece.

  Args:
    vocabulary: any kind but "words"; its rules are those of Hugging Face.
    tokens: in the order of their ids. One that is a piece already keeps its id,
      one that was added before gets these flags.

  Raises:
    ValueError: the kind has no added tokens.
  """
  if vocabulary.kind == "words" or vocabulary.clean is not None:
    rules = vocabulary.options.get("rules")
    raise ValueError(
      f"a tokenizer with the rules {rules!r} has no added tokens"
      f" ({listed([token.content for token in tokens])}); leave --rules out."
    )
  if vocabulary.marked.get_vocab_size() < vocabulary.vocab_size:
    vocabulary = _filled(vocabulary)
  marked = added_to(share(vocabulary.marked), vocabulary.marked)
  marked.add_tokens(list(tokens))
  result = with_added(vocabulary, marked)
  if not result.added:
    return result
  # A tokenizer of that file alone says itself what it adds around a text.
  form = marked if {*vocabulary.files} == {JSON} else adding(result)
  files = {**vocabulary.files, JSON: form.to_str().encode("utf-8")}
  return dataclasses.replace(result, files=files)


def _filled(vocabulary: Vocabulary) -> Vocabulary:
  """Gives the library's model the pieces that only fill gaps between ids.

  The library counts pieces to number the next one.
  """

  def fill(tokenizer: Tokenizer) -> Tokenizer:
    content = json.loads(share(tokenizer).to_str())
    pieces = content["model"]["vocab"]
    numbers = set(pieces.values())
    for number, piece in enumerate(vocabulary.pieces):
      if number not in numbers:
        pieces[piece] = number
    return added_to(Tokenizer.from_str(json.dumps(content)), tokenizer)

  plain, marked = fill(vocabulary.plain), fill(vocabulary.marked)
  return dataclasses.replace(vocabulary, plain=plain, marked=marked)


def with_added(vocabulary: Vocabulary, marked: Tokenizer) -> Vocabulary:
  """Returns the tokenizer with all added tokens of `marked`.

  Args:
    vocabulary: whose pieces are the first ones of `marked`.
    marked: the library's tokenizer to which special tokens are special.
  """
  roles = role_tokens(vocabulary)
  numbers = marked.get_added_tokens_decoder()
  by_number = [numbers[number] for number in sorted(numbers)]
  added = tuple(token for token in by_number if token.content not in roles)
  if not added:
    return dataclasses.replace(vocabulary, marked=marked, _caches=[{}])
  plain = share(vocabulary.plain)
  size = vocabulary.vocab_size
  new = [
    numbers[number].content for number in sorted(numbers) if number >= size
  ]
  pieces = [*vocabulary.pieces, *new]
  boundary = np.append(vocabulary.boundary, np.ones(len(new), bool))
  boundary[[*numbers]] = True
  plain.add_tokens(_without_roles(by_number, roles, vocabulary, plain))
  # Special tokens of the family are text to it; all others are not special.
  plain.encode_special_tokens = True
  for token in added:
    if plain.token_to_id(token.content) != marked.token_to_id(token.content):
      raise ValueError(
        f"the added token {token.content!r} is spelt as another piece is."
      )
  whole = vocabulary.whole
  if isinstance(whole, Holds):
    whole = whole.other
  return dataclasses.replace(
    vocabulary,
    pieces=pieces,
    plain=plain,
    marked=marked,
    boundary=boundary,
    whole=_holds(added, plain, whole),
    added=added,
    _caches=[{}],
  )


def _without_roles(
  tokens: Iterable[AddedToken],
  roles: set[str],
  vocabulary: Vocabulary,
  plain: Tokenizer,
) -> list[AddedToken]:
  """The tokens as a tokenizer reads them to which roles are text."""
  made = []
  size = plain.get_vocab_size(with_added_tokens=False)
  for token in tokens:
    if token.content not in roles:
      flags = flags_of(token) | {"special": False}
      made.append(AddedToken(token.content, **flags))
    elif vocabulary.pieces.index(token.content) >= size:
      # No piece of the model: later tokens' ids count on it.
      made.append(token)
  return made


def _holds(
  tokens: Sequence[AddedToken], plain: Tokenizer, other: re.Pattern | None
) -> Holds:
  """Finds texts in which one of the tokens could be."""
  normalizer = plain.normalizer
  raw = [token.content for token in tokens if not token.normalized]
  normal = [token.content for token in tokens if token.normalized]
  if normalizer is not None:
    normal = [normalizer.normalize_str(content) for content in normal]
  fold = None
  if isinstance(normalizer, normalizers.BertNormalizer):
    fold = str.lower if normalizer.lowercase else str
  return Holds(_any_of(raw), _any_of(normal), normalizer, other, fold)


def _any_of(contents: Iterable[str]) -> re.Pattern | None:
  contents = sorted({content for content in contents if content})
  return re.compile(_branches(contents, 3)) if contents else None


def _branches(contents: Sequence[str], depth: int) -> str:
  """A pattern that matches where one of the contents begins.

  Contents that begin alike share a branch: thousands of branches side by side
  would all be tried at every character.

  Args:
    contents: sorted; an empty one matches at once.
    depth: how many first characters get branches of their own.
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
  """The first few contents, and how many more there are."""
  shown = ", ".join(repr(content) for content in contents[:_SHOWN])
  more = len(contents) - _SHOWN
  return f"{shown} and {more} more" if more > 0 else shown


def adding(vocabulary: Vocabulary) -> Tokenizer:
  """Returns the tokenizer that adds special tokens, as transformers' does.

  [CLS] text [SEP], with the names and segments of the kind.
  """
  special, pieces = vocabulary.special, vocabulary.pieces
  if special.mask is None:
    return vocabulary.marked
  made = added_to(share(vocabulary.marked), vocabulary.marked)
  ends = [(pieces[i], i) for i in (special.sep, special.cls)]
  if vocabulary.kind == "bytelevel":
    space = vocabulary.options["add_prefix_space"]
    made.post_processor = processors.RobertaProcessing(
      *ends, add_prefix_space=space
    )
  else:
    made.post_processor = processors.BertProcessing(*ends)
  if vocabulary.kind == "wordpiece":
    made.decoder = decoders.WordPiece(prefix="##")
  return made


def settings_of(vocabulary: Vocabulary) -> dict[str, Any]:
  """What `tokenizer_config.json` says of added tokens, for transformers."""
  if not vocabulary.added:
    return {}
  tokens = vocabulary.marked.get_added_tokens_decoder()
  entries = {
    str(number): {"content": tokens[number].content, **flags_of(tokens[number])}
    for number in sorted(tokens)
  }
  made: dict[str, Any] = {"added_tokens_decoder": entries}
  special = [token.content for token in vocabulary.added if token.special]
  if special:
    made["additional_special_tokens"] = special
  return made


def _first(vocabulary: Vocabulary, size: int) -> Vocabulary:
  """Returns the tokenizer without the added tokens from an id on."""
  tokens = vocabulary.marked.get_added_tokens_decoder()
  marked = share(vocabulary.marked)
  marked.add_tokens([tokens[i] for i in sorted(tokens) if i < size])
  whole = vocabulary.whole
  base = dataclasses.replace(
    vocabulary,
    pieces=vocabulary.pieces[:size],
    plain=share(vocabulary.plain),
    boundary=vocabulary.boundary[:size],
    whole=whole.other if isinstance(whole, Holds) else whole,
    added=(),
    _caches=[{}],
  )
  return with_added(base, marked)


def old_ids(
  vocabulary: Vocabulary, size: int | None = None
) -> Callable[[str], list[int]]:
  """Returns the function from a new piece to the old pieces of its text.

  Args:
    vocabulary: a tokenizer.
    size: how many of its pieces are old; None for all. Added tokens beyond them
      are read as if they were not there.

  Returns:
    Text -> ids, without the id of the unknown piece; [] where nothing is left.
  """
  if size is not None and any(i >= size for i in vocabulary.added_ids):
    vocabulary = _first(vocabulary, size)

  def ids(piece: str) -> list[int]:
    # In running text a word has a space before it, which some pieces hold.
    encoded, _ = vocabulary.encode_words([piece.strip()])
    return [i for i in encoded.tolist() if i != vocabulary.special.unk]

  return ids
