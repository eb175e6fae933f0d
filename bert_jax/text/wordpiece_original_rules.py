"""BERT's first rules for words (google-research/bert tokenization.py).

A restatement of its BasicTokenizer that also keeps where each character came
from. Unicode data is that of the running Python, as it is there.
"""

import unicodedata

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


def clean(text: str, lower_case: bool) -> tuple[str, list[int]]:
  """Splits a raw text into words, cleaned, with punctuation apart.

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
