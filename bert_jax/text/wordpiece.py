"""WordPiece as in BERT, by Hugging Face's rules or the original ones.

"huggingface": the rules of `BertTokenizerFast`, with which published
vocabularies are used today. Control, format and private characters are dropped,
unassigned ones are kept as letters; accents are stripped together with
lower-casing unless they are to stay, Chinese characters and punctuation stand
alone, a word of more than 100 characters is `[UNK]`.

"original": `tokenization.py` of github.com/google-research/bert. It keeps
private characters as well, lower-cases as Python does, and its limit is 200
characters. Slower, since it runs in Python; see docs/tokenizers.md for
every difference.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import (
  SPECIAL_TOKENS,
  WORDS,
  Vocabulary,
  mark,
  special_ids,
)

CONTINUATION = "##"
MAX_WORD_CHARS = {"huggingface": 100, "original": 200}
RULES = tuple(MAX_WORD_CHARS)
# The lower case of a capital sigma depends on the punctuation around it.
_ORIGINAL_WORDS = re.compile("[^ ]+")
# Blocks of CJK ideographs, _is_chinese_char.
_CHINESE = (
  (0x4E00, 0x9FFF),
  (0x3400, 0x4DBF),
  (0x20000, 0x2A6DF),
  (0x2A700, 0x2B73F),
  (0x2B740, 0x2B81F),
  (0x2B820, 0x2CEAF),
  (0xF900, 0xFAFF),
  (0x2F800, 0x2FA1F),
)


def normalizer(
  lower_case: bool,
  strip_accents: bool | None = None,
  tokenize_chinese_chars: bool = True,
) -> normalizers.Normalizer:
  """Returns BERT's clean-up of raw text, shared with `bert_jax vocab`."""
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
    pieces: from `read`, for example.
    lower_case: True for an uncased vocabulary.
    source: the file that the pieces come from, for messages.
    rules: one of `RULES`.
    strip_accents: None for what `lower_case` says; a few published models
      lower-case and keep accents.
    tokenize_chinese_chars: True if each ideograph is a word by itself.

  Raises:
    UserError: a special token is missing, or `rules` is unknown or has not
      what the last two ask for.
  """
  if rules not in RULES:
    raise UserError(f"{source}: rules {rules!r}: not one of {list(RULES)}.")
  more = {}
  if strip_accents not in (None, lower_case):
    more["strip_accents"] = strip_accents
  if not tokenize_chinese_chars:
    more["tokenize_chinese_chars"] = False
  if more and rules == "original":
    raise UserError(f"{source}: the original rules have no {list(more)}.")
  pieces = list(pieces)
  special = special_ids(pieces, source)
  tokenizer = Tokenizer(
    models.WordPiece(
      {piece: i for i, piece in enumerate(pieces)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARS[rules],
      continuing_subword_prefix=CONTINUATION,
    )
  )
  if rules == "huggingface":
    tokenizer.normalizer = normalizer(
      lower_case, strip_accents, tokenize_chinese_chars
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    clean, atoms, ascii = None, WORDS, str.lower if lower_case else str
  else:
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    clean = functools.partial(clean_by_original_rules, lower_case=lower_case)
    atoms, ascii = _ORIGINAL_WORDS, None
  tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
  return Vocabulary(
    kind="wordpiece",
    pieces=pieces,
    special=special,
    plain=tokenizer,
    marked=mark(tokenizer, SPECIAL_TOKENS),
    boundary=np.array([not p.startswith(CONTINUATION) for p in pieces]),
    # The last two only where they are unusual: options tell texts apart.
    options=dict(lower_case=lower_case, rules=rules) | more,
    files={"vocab.txt": "".join(f"{p}\n" for p in pieces).encode("utf-8")},
    atoms=atoms,
    ascii=ascii,
    clean=clean,
  )


def check_uncased(vocabulary: Vocabulary, source: str) -> None:
  """Refuses to lower-case for a cased vocabulary.

  Raises:
    UserError: over 1% of the pieces have capitals, which no text could give.
  """
  words = [p for p in vocabulary.pieces if not re.fullmatch(r"\[.*\]", p)]
  cased = [p for p in words if p != p.lower()]
  if vocabulary.lower_case and len(cased) > 0.01 * len(words):
    raise UserError(
      f"{source}: a cased vocabulary ({len(cased)} pieces with capitals, such"
      f" as {cased[0]!r}) cannot be used with lower-casing; pass"
      " --no-lower-case (lower_case=False), or set do_lower_case to false in"
      " the tokenizer_config.json of its folder."
    )


def clean_by_original_rules(
  text: str, lower_case: bool
) -> tuple[str, list[int]]:
  """Splits a raw text into words, cleaned, with punctuation apart.

  A restatement of BasicTokenizer (google-research/bert tokenization.py) that
  also keeps where each character came from. Unicode data is that of the running
  Python, as it is there.

  Args:
    text: raw text.
    lower_case: lower-case and strip accents, as for an uncased vocabulary.

  Returns:
    The words joined by single spaces, and for each of its characters the index
    of the raw character it comes from (-1 for the spaces).
  """
  words: list[list[tuple[str, int]]] = []
  for word in _words(text):
    folded = _fold(word) if lower_case else word
    words += _split_punctuation(folded)
  cleaned: list[str] = []
  origin: list[int] = []
  for word in words:
    if cleaned:
      cleaned.append(" ")
      origin.append(-1)
    cleaned += [character for character, _ in word]
    origin += [index for _, index in word]
  return "".join(cleaned), origin


def _words(text: str) -> list[list[tuple[str, int]]]:
  """White space and ideographs separate; controls go."""
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
  """Lower-cases, decomposes, drops non-spacing marks."""
  lowered = "".join(character for character, _ in word).lower()
  # Python looks at the neighbours of a capital sigma only, which keeps lengths.
  origin = [i for character, i in word for _ in character.lower()]
  origin = [
    i
    for character, i in zip(lowered, origin, strict=True)
    for _ in unicodedata.normalize("NFD", character)
  ]
  decomposed = unicodedata.normalize("NFD", lowered)
  return [
    (character, i)
    for character, i in zip(decomposed, origin, strict=True)
    if unicodedata.category(character) != "Mn"
  ]


def _split_punctuation(
  word: list[tuple[str, int]],
) -> list[list[tuple[str, int]]]:
  """Punctuation stands alone; so does what white space folding made."""
  parts: list[list[tuple[str, int]]] = [[]]
  for character, index in word:
    if character.isspace():
      parts.append([])
    elif is_punctuation(character):
      parts += [[(character, index)], []]
    else:
      parts[-1].append((character, index))
  return [part for part in parts if part]


def is_control(character: str) -> bool:
  """Control and format characters; tab and ends of line are white space."""
  return character not in "\t\n\r" and unicodedata.category(character) in (
    "Cc",
    "Cf",
  )


def is_punctuation(character: str) -> bool:
  """All ASCII but letters, digits, space, and the categories P*."""
  if character.isascii():
    return "!" <= character <= "~" and not character.isalnum()
  return unicodedata.category(character).startswith("P")


def is_chinese(character: str) -> bool:
  """CJK ideographs, not Hangul nor kana."""
  point = ord(character)
  return point > 0x33FF and any(low <= point <= high for low, high in _CHINESE)
