"""Reads a file of tokens to add to a vocabulary: `--add-tokens FILE`.

Each line of the file is the text of a token, as in transformers'
`tokenizer.add_tokens([...])`. The token is found anywhere in the normalized
text, also inside a word. A line may also be a JSON object with the token's text
and flags, for example {"content": "art", "single_word": true}.
"""

import json
from collections.abc import Iterator
from typing import Any

from etils import epath
from tokenizers import AddedToken

from bert_jax.files import PathLike, decode_utf8
from bert_jax.messages import UserError
from bert_jax.text import added_tokens, words
from bert_jax.text.vocabulary import Vocabulary


def add_from_file(
  vocabulary: Vocabulary, path: PathLike
) -> tuple[Vocabulary, str]:
  """Adds the tokens of a file after the last piece of a vocabulary.

  A token is left out if an earlier line of the file has it, or if adding it
  would change nothing (see `_would_change_nothing`).

  Args:
    vocabulary: any vocabulary except WordPiece with --rules=original, which
      cannot have added tokens.
    path: the file of tokens.

  Returns:
    The vocabulary with the tokens, and a sentence that says what was added and
    what was left out.

  Raises:
    UserError: the file is missing, damaged or has no tokens, a line is not a
      token, or this kind of vocabulary cannot have the token. The message names
      the file and the line.
  """
  existing_names: list[str] = []
  repeated_names: list[str] = []
  num_empty_lines = 0
  token_by_text: dict[str, AddedToken] = {}
  for location, token in _read_tokens(path):
    if token is None:
      num_empty_lines += 1
      continue
    matched_text = _matched_text(vocabulary, token, location)
    if matched_text in token_by_text:
      repeated_names.append(token.content)
    elif _would_change_nothing(vocabulary, token):
      existing_names.append(token.content)
    else:
      _check_is_word(vocabulary, token, location)
      token_by_text[matched_text] = token
  if not token_by_text and not existing_names:
    raise UserError(f"{path} has no tokens; write one on each line.")
  extended = (
    _add_after_last(vocabulary, [*token_by_text.values()], path)
    if token_by_text
    else vocabulary
  )
  new_pieces = list(extended.pieces[vocabulary.vocab_size :])
  new_contents = set(new_pieces)
  old_pieces_now_whole = [
    added_token.content
    for added_token in token_by_text.values()
    if added_token.content not in new_contents
  ]
  name_list = f": {added_tokens.short_list(new_pieces)}" if new_pieces else ""
  phrases = [
    f"{path}: {len(new_pieces)} new pieces after the"
    f" {vocabulary.vocab_size:,} pieces of the vocabulary{name_list}"
  ]
  if old_pieces_now_whole:
    name_list = added_tokens.short_list(old_pieces_now_whole)
    phrases.append(f"already pieces, now found whole in any text: {name_list}")
  if existing_names:
    name_list = added_tokens.short_list(existing_names)
    phrases.append(f"left out, since each is one piece already: {name_list}")
  if repeated_names:
    name_list = added_tokens.short_list(repeated_names)
    phrases.append(f"left out, since each is on an earlier line: {name_list}")
  if num_empty_lines:
    phrases.append(f"empty lines: {num_empty_lines}")
  return extended, "; ".join(phrases) + "."


def _read_tokens(path: PathLike) -> Iterator[tuple[str, AddedToken | None]]:
  """Yields ("FILE:LINE", token) of each line; an empty line has token None."""
  try:
    content = epath.Path(path).read_bytes()
  except OSError as e:
    raise UserError(f"--add-tokens={path}: {e.strerror}.") from e
  text = decode_utf8(content, path).removeprefix("\ufeff")
  lines = text.split("\n")
  for line_number, line in enumerate(lines, 1):
    line = line.strip()
    location = f"{path}:{line_number}"
    if line:
      yield location, _parse_line(line, location)
    elif line_number < len(lines):
      # The text after the last line end is no line, so it is left out.
      yield location, None


def _parse_line(line: str, location: str) -> AddedToken:
  """Returns the token of a line; raises UserError if the line is wrong."""
  fields = _parse_object(line)
  if fields is None:
    return AddedToken(line, normalized=True, special=False)
  flags = added_tokens.FLAGS
  bad_keys = [key for key in fields if key not in ("content", *flags)]
  bad_keys += [key for key in flags if type(fields.get(key, True)) is not bool]
  if bad_keys or not isinstance(fields["content"], str):
    raise UserError(
      f"{location}: {(bad_keys or ['content'])[0]!r} is wrong; a token has"
      " 'content', which is text, and the flags"
      f" {', '.join(flags)}, each true or false."
    )
  return added_tokens.make_token(fields)


def _parse_object(line: str) -> dict[str, Any] | None:
  """Returns a JSON object with the key `content`; None for any other line."""
  if not line.startswith("{"):
    return None
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return fields if isinstance(fields, dict) and "content" in fields else None


def _matched_text(
  vocabulary: Vocabulary, token: AddedToken, location: str
) -> str:
  """Returns the text that the tokenizer matches for a token.

  Raises:
    UserError: normalization leaves nothing but white space of the token.
  """
  text, normalizer = token.content, vocabulary.plain_text_tokenizer.normalizer
  if token.normalized and normalizer is not None:
    text = normalizer.normalize_str(text)
  if not text.strip():
    raise UserError(
      f"{location}: nothing is left of {token.content!a} when the tokenizer has"
      " cleaned it; remove the line."
    )
  return text


def _would_change_nothing(vocabulary: Vocabulary, token: AddedToken) -> bool:
  """Returns True if adding the token would change nothing.

  This is so for a special token of the family, and for a token with default
  flags that the vocabulary reads as one piece.
  """
  if token.content in added_tokens.family_special_tokens(vocabulary):
    return True
  if added_tokens.flags_of(token) != added_tokens.flags_of(
    _TOKEN_WITH_DEFAULTS
  ):
    return False
  if vocabulary.algorithm == "words":
    return token.content in vocabulary.pieces
  ids, _ = vocabulary.encode_words([token.content])
  return len(ids) == 1 and ids[0] != vocabulary.special.unk


_TOKEN_WITH_DEFAULTS = AddedToken("x", normalized=True, special=False)


def _check_is_word(
  vocabulary: Vocabulary, token: AddedToken, location: str
) -> None:
  """Raises UserError if pieces are whole words, but the token is no word."""
  if vocabulary.algorithm != "words":
    return
  token_words = vocabulary.plain_text_tokenizer.pre_tokenizer.pre_tokenize_str(
    token.content
  )
  if len(token_words) != 1:
    raise UserError(
      f"{location}: {token.content!r} is {len(token_words)} words by the rules"
      f" {vocabulary.options['rules']!r}; only single words can be added to a"
      " vocabulary of words. With --rules=spaces, a word is any text without"
      " white space."
    )


def _add_after_last(
  vocabulary: Vocabulary, tokens: list[AddedToken], path: PathLike
) -> Vocabulary:
  """Returns the vocabulary with new tokens after its last piece."""
  if vocabulary.algorithm == "words":
    pieces = [*vocabulary.pieces, *(token.content for token in tokens)]
    rules = vocabulary.options["rules"]
    return words.build(pieces, vocabulary.other_words, str(path), rules)
  try:
    return added_tokens.add_tokens(vocabulary, tokens)
  except ValueError as e:
    raise UserError(f"--add-tokens={path}: {e}") from e
