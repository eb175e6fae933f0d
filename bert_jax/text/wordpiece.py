"""Builds BERT's WordPiece with Hugging Face's rules or the original rules.

"huggingface" names the rules of `BertTokenizerFast`, with which published
vocabularies are used today:
* Control, format and private characters are dropped. Unassigned characters are
  letters.
* If text is changed to lower case, accents are stripped, unless an option keeps
  the accents.
* Each Chinese character and each punctuation sign is a word by itself.
* A word of more than 100 characters is `[UNK]`.

"original" names the rules of github.com/google-research/bert tokenization.py.
These rules keep private characters, change text to lower case as Python does,
and allow words of 200 characters. They are slower than the rules "huggingface",
because they run in Python.
docs/tokenizers.md lists every difference.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from bert_jax.messages import UserError, by_caller
from bert_jax.text.vocabulary import (
  SPECIAL_TOKENS,
  WORD_PATTERN,
  Vocabulary,
  bert_special_ids,
  copy_that_reads,
)

# The beginning of a piece that continues a word.
CONTINUATION = "##"
# Rules -> the largest number of characters in a word that is not [UNK].
MAX_WORD_CHARS = {"huggingface": 100, "original": 200}
RULES = tuple(MAX_WORD_CHARS)
# Matches the chunks for the original rules. The lower case of a capital sigma
# depends on the punctuation around the sigma, so a text is cut only at spaces.
_ORIGINAL_CHUNK_PATTERN = re.compile("[^ ]+")
# First and last code points of the blocks of CJK ideographs, from
# _is_chinese_char of the original program.
_CHINESE_BLOCKS = (
  (0x4E00, 0x9FFF),
  (0x3400, 0x4DBF),
  (0x20000, 0x2A6DF),
  (0x2A700, 0x2B73F),
  (0x2B740, 0x2B81F),
  (0x2B820, 0x2CEAF),
  (0xF900, 0xFAFF),
  (0x2F800, 0x2FA1F),
)


def make_normalizer(
  lower_case: bool,
  strip_accents: bool | None = None,
  tokenize_chinese_chars: bool = True,
) -> normalizers.Normalizer:
  """Returns the library's normalizer with BERT's rules.

  Args:
    lower_case: True if text is changed to lower case.
    strip_accents: True if accents are stripped; None means `lower_case`.
    tokenize_chinese_chars: True if each ideograph is a word by itself.
  """
  return normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=tokenize_chinese_chars,
    strip_accents=lower_case if strip_accents is None else strip_accents,
    lowercase=lower_case,
  )


def build(
  pieces: Sequence[str],
  lower_case: bool = True,
  source: str = "vocabulary",
  rules: str = "huggingface",
  strip_accents: bool | None = None,
  tokenize_chinese_chars: bool = True,
) -> Vocabulary:
  """Builds the tokenizer.

  Args:
    pieces: the pieces in the order of their ids.
    lower_case: True if text is changed to lower case.
    source: the file of the pieces, for messages.
    rules: one of `RULES`.
    strip_accents: see `make_normalizer`. A few published models change text to
      lower case, but keep accents.
    tokenize_chinese_chars: see `make_normalizer`.

  Raises:
    UserError: a special token is missing, `rules` is unknown, or `rules` is
      "original" and `strip_accents` or `tokenize_chinese_chars` differs from
      its default.
  """
  if rules not in RULES:
    raise UserError(f"{source}: rules {rules!r} is not one of {list(RULES)}.")
  # Leave out options with their default values: tokenizers that give equal ids
  # must have equal `Vocabulary.options`.
  unusual_options: dict[str, bool | None] = {}
  if strip_accents not in (None, lower_case):
    unusual_options["strip_accents"] = strip_accents
  if not tokenize_chinese_chars:
    unusual_options["tokenize_chinese_chars"] = False
  if unusual_options and rules == "original":
    raise UserError(
      f"{source}: the original rules have no {list(unusual_options)}."
    )
  pieces = list(pieces)
  special = bert_special_ids(pieces, source)
  tokenizer = Tokenizer(
    models.WordPiece(
      {piece: piece_id for piece_id, piece in enumerate(pieces)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARS[rules],
      continuing_subword_prefix=CONTINUATION,
    )
  )
  if rules == "huggingface":
    tokenizer.normalizer = make_normalizer(
      lower_case, strip_accents, tokenize_chinese_chars
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    chunk_pattern = WORD_PATTERN
    clean, normalize_ascii = None, str.lower if lower_case else str
  else:
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    clean = functools.partial(clean_by_original_rules, lower_case=lower_case)
    chunk_pattern, normalize_ascii = _ORIGINAL_CHUNK_PATTERN, None
  tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
  return Vocabulary(
    algorithm="wordpiece",
    pieces=pieces,
    special=special,
    plain_text_tokenizer=tokenizer,
    special_tokenizer=copy_that_reads(tokenizer, SPECIAL_TOKENS),
    at_word_boundary=np.array(
      [not piece.startswith(CONTINUATION) for piece in pieces]
    ),
    options=dict(lower_case=lower_case, rules=rules) | unusual_options,
    files={
      "vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode("utf-8")
    },
    chunk_pattern=chunk_pattern,
    normalize_ascii=normalize_ascii,
    clean=clean,
  )


def check_uncased(vocabulary: Vocabulary, source: str) -> None:
  """Checks that text for cased pieces is not changed to lower case.

  Args:
    vocabulary: the tokenizer.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: text is changed to lower case, but over 1% of the pieces have
      capitals. No text in lower case could have these pieces.
  """
  ordinary_pieces = [
    piece for piece in vocabulary.pieces if not re.fullmatch(r"\[.*\]", piece)
  ]
  cased_pieces = [piece for piece in ordinary_pieces if piece != piece.lower()]
  if vocabulary.lower_case and len(cased_pieces) > 0.01 * len(ordinary_pieces):
    flag_text = by_caller("pass --no-lower-case (lower_case=False), or ", "")
    raise UserError(
      f"{source}: a cased vocabulary ({len(cased_pieces)} pieces with"
      f" capitals, such as {cased_pieces[0]!r}) cannot be used with"
      f" lower-casing; {flag_text}set do_lower_case to"
      " false in the tokenizer_config.json of its folder."
    )


def clean_by_original_rules(
  text: str, lower_case: bool
) -> tuple[str, list[int]]:
  """Cleans a raw text, and splits it into words and punctuation.

  This function does what BasicTokenizer in google-research/bert tokenization.py
  does, and also returns from which raw character each character comes. Like
  BasicTokenizer, it uses the Unicode data of the running Python.

  Args:
    text: the raw text.
    lower_case: True if text is changed to lower case and accents are stripped,
      for an uncased vocabulary.

  Returns:
    The words with single spaces between them and, for each character, the index
    of the raw character from which it comes. A space has -1.
  """
  words: list[list[tuple[str, int]]] = []
  for word in _split_words(text):
    folded_word = _fold(word) if lower_case else word
    words += _split_punctuation(folded_word)
  cleaned: list[str] = []
  origins: list[int] = []
  for word in words:
    if cleaned:
      cleaned.append(" ")
      origins.append(-1)
    cleaned += [character for character, _ in word]
    origins += [index for _, index in word]
  return "".join(cleaned), origins


def _split_words(text: str) -> list[list[tuple[str, int]]]:
  """Splits a text at white space and ideographs, and drops controls.

  Returns:
    The words; a word is a list of (character, its index in the text).
  """
  words: list[list[tuple[str, int]]] = [[]]
  for index, character in enumerate(text):
    if character in "\t\n\r":
      words.append([])
    elif character in "\0\ufffd" or is_control(character):
      continue
    elif character.isspace():
      words.append([])
    elif is_chinese(character):
      words += [[(character, index)], []]
    else:
      words[-1].append((character, index))
  return [word for word in words if word]


def _fold(word: list[tuple[str, int]]) -> list[tuple[str, int]]:
  """Changes a word to lower case, decomposes it, and drops its marks (Mn)."""
  lowered = "".join(character for character, _ in word).lower()
  # Lower-casing the whole word gives as many characters as lower-casing each
  # character alone. Only the lower case of a sigma depends on the letters
  # around the sigma, and it is always one character.
  indices = [index for character, index in word for _ in character.lower()]
  indices = [
    index
    for character, index in zip(lowered, indices, strict=True)
    for _ in unicodedata.normalize("NFD", character)
  ]
  decomposed = unicodedata.normalize("NFD", lowered)
  return [
    (character, index)
    for character, index in zip(decomposed, indices, strict=True)
    if unicodedata.category(character) != "Mn"
  ]


def _split_punctuation(
  word: list[tuple[str, int]],
) -> list[list[tuple[str, int]]]:
  """Splits a word at punctuation, and at white space that `_fold` returned."""
  words: list[list[tuple[str, int]]] = [[]]
  for character, index in word:
    if character.isspace():
      words.append([])
    elif is_punctuation(character):
      words += [[(character, index)], []]
    else:
      words[-1].append((character, index))
  return [word for word in words if word]


def is_control(character: str) -> bool:
  """Returns True for a control or format sign that is no tab or line end."""
  return character not in "\t\n\r" and unicodedata.category(character) in (
    "Cc",
    "Cf",
  )


def is_punctuation(character: str) -> bool:
  """Returns True for printable ASCII signs and for Unicode categories P*."""
  if character.isascii():
    return "!" <= character <= "~" and not character.isalnum()
  return unicodedata.category(character).startswith("P")


def is_chinese(character: str) -> bool:
  """Returns True for a CJK ideograph, but not for Hangul and kana."""
  code_point = ord(character)
  return code_point > 0x33FF and any(
    first <= code_point <= last for first, last in _CHINESE_BLOCKS
  )
