"""A file of tokens to add to a vocabulary at its end: `--add_tokens FILE`.

A token a line, read as transformers' `tokenizer.add_tokens([...])` reads it:
wherever it stands in a text, also inside of a word, in the text as the model
sees it. A line that is a JSON object says more:
{"content": "art", "single_word": true}, with the flags of `added_tokens.FLAGS`.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken

from bert_jax.data import added_tokens, words
from bert_jax.data.tokenizer import Vocabulary


def extend(vocabulary: Vocabulary, path: str) -> tuple[Vocabulary, str]:
  """Adds the tokens of a file after the last piece of a vocabulary.

  A token that the vocabulary reads as one piece already is left out, and so is
  one that stands in the file before.

  Args:
    vocabulary: any kind; the original rules of WordPiece have no added tokens.
    path: the file.

  Returns:
    The longer vocabulary, and a sentence that says what was added and what was
    left out.

  Raises:
    ValueError: the file is missing, damaged or has no tokens, a line is not a
      token, or this kind of vocabulary cannot have it; names file and line.
  """
  known, twice, empty = [], [], 0
  tokens: dict[str, AddedToken] = {}
  for where, token in _read(path):
    if token is None:
      empty += 1
      continue
    seen = _as_seen(vocabulary, token, where)
    if seen in tokens:
      twice.append(token.content)
    elif _is_one_piece(vocabulary, token):
      known.append(token.content)
    else:
      _check_is_word(vocabulary, token, where)
      tokens[seen] = token
  if not tokens and not known:
    raise ValueError(f"{path}: no tokens in it; write one a line.")
  result = _add(vocabulary, [*tokens.values()], path) if tokens else vocabulary
  new = list(result.pieces[vocabulary.vocab_size :])
  fresh = set(new)
  old = [t.content for t in tokens.values() if t.content not in fresh]
  names = f": {added_tokens.listed(new)}" if new else ""
  parts = [
    f"{path}: {len(new)} new pieces after the {vocabulary.vocab_size:,} of the"
    f" vocabulary{names}"
  ]
  if old:
    names = added_tokens.listed(old)
    parts.append(f"pieces that keep their ids and are not cut now: {names}")
  if known:
    names = added_tokens.listed(known)
    parts.append(f"left out, since each is one piece already: {names}")
  if twice:
    names = added_tokens.listed(twice)
    parts.append(f"left out, since each stands there before: {names}")
  if empty:
    parts.append(f"empty lines: {empty}")
  return result, "; ".join(parts) + "."


def _read(path: str) -> Iterator[tuple[str, AddedToken | None]]:
  """Yields (file and line, token) of each line; None for an empty one."""
  try:
    with open(path, "rb") as f:
      content = f.read()
  except OSError as e:
    raise ValueError(f"--add_tokens={path}: {e.strerror}.") from e
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as e:
    raise ValueError(f"{path}: not UTF-8 (byte {e.start}).") from e
  lines = text.split("\n")
  for number, line in enumerate(lines, 1):
    line = line.strip()
    where = f"{path}:{number}"
    if line:
      yield where, _token(line, where)
    elif number < len(lines):  # After the last line end there is no line.
      yield where, None


def _token(line: str, where: str) -> AddedToken:
  fields = _object(line)
  if fields is None:
    return AddedToken(line, normalized=True, special=False)
  flags = added_tokens.FLAGS
  wrong = [key for key in fields if key not in ("content", *flags)]
  wrong += [key for key in flags if type(fields.get(key, True)) is not bool]
  if wrong or not isinstance(fields["content"], str):
    raise ValueError(
      f"{where}: {[*wrong, 'content'][0]!r} is wrong; a token has 'content',"
      f" which is text, and the flags {', '.join(flags)}, each true or false."
    )
  return added_tokens.make_token(fields)


def _object(line: str) -> dict[str, Any] | None:
  """A line as a JSON object with `content`; None if it is plain text."""
  if not line.startswith("{"):
    return None
  try:
    value = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) and "content" in value else None


def _as_seen(vocabulary: Vocabulary, token: AddedToken, where: str) -> str:
  """The text that the tokenizer looks for; ValueError if nothing is left."""
  seen, normalizer = token.content, vocabulary.plain.normalizer
  if token.normalized and normalizer is not None:
    seen = normalizer.normalize_str(seen)
  if not seen.strip():
    raise ValueError(
      f"{where}: nothing is left of {token.content!a} when the tokenizer has"
      " cleaned it; remove the line."
    )
  return seen


def _is_one_piece(vocabulary: Vocabulary, token: AddedToken) -> bool:
  """Whether the token needs no piece of its own."""
  if token.content in added_tokens.role_tokens(vocabulary):
    return True
  if added_tokens.flags_of(token) != added_tokens.flags_of(_PLAIN):
    return False
  if vocabulary.kind == "words":
    return token.content in vocabulary.pieces
  ids, _ = vocabulary.encode_words([token.content])
  return len(ids) == 1 and ids[0] != vocabulary.special.unk


_PLAIN = AddedToken("x", normalized=True, special=False)


def _check_is_word(
  vocabulary: Vocabulary, token: AddedToken, where: str
) -> None:
  """Raises ValueError for a token that a vocabulary of words would cut."""
  if vocabulary.kind != "words":
    return
  parts = vocabulary.plain.pre_tokenizer.pre_tokenize_str(token.content)
  if len(parts) != 1:
    raise ValueError(
      f"{where}: {token.content!r} is {len(parts)} words by the rules"
      f" {vocabulary.options['rules']!r}; a vocabulary of words takes whole"
      " words only (--rules=spaces: without white space in them)."
    )


def _add(
  vocabulary: Vocabulary, tokens: list[AddedToken], path: str
) -> Vocabulary:
  if vocabulary.kind == "words":
    pieces = [*vocabulary.pieces, *(token.content for token in tokens)]
    rules = vocabulary.options["rules"]
    return words.build(pieces, vocabulary.others, path, rules)
  try:
    return added_tokens.add(vocabulary, tokens)
  except ValueError as e:
    raise ValueError(f"--add_tokens={path}: {e}") from e
