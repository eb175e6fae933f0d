"""Cleans text before a vocabulary is trained and before tokenization.

Both steps must clean text in the same way. So the cleaning is one setting,
which is stored with the vocabulary. A SentencePiece `.model` stores it as its
normalization rules, and `tokenizer.json` as its normalizer. For other files, a
`tokenizer_config.json` in the same folder stores it.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bert_jax.messages import UserError


class Cleaning(NamedTuple):
  """Says how cleaning treats capitals and accents; None means not set.

  Attributes:
    lower_case: True if text is changed to lower case.
    keep_accents: True if accents stay.
  """

  lower_case: bool | None = None
  keep_accents: bool | None = None

  def with_defaults(self, lower_case: bool = True) -> "Cleaning":
    """Fills in the fields that are None.

    By default accents are stripped if the text is changed to lower case.
    """
    lower = lower_case if self.lower_case is None else self.lower_case
    keep = not lower if self.keep_accents is None else self.keep_accents
    return Cleaning(lower, keep)

  def describe(self) -> str:
    """Describes the setting in words, for messages."""
    case = {True: "in lower case", False: "with capitals", None: ""}
    accents = {True: "with accents", False: "without accents", None: ""}
    phrases = [case[self.lower_case], accents[self.keep_accents]]
    return " and ".join(filter(None, phrases))


# Names of normalizers in a `.model`. SentencePiece writes the names in
# `FOLDING_RULES`, which fold case and keep accents. This package writes the
# names in `PACKAGE_RULES`; each name has the cleaning that the rules do.
FOLDING_RULES = ("nmt_nfkc_cf", "nfkc_cf")
PACKAGE_RULES = {
  "nmt_nfkc_lower_unaccented": Cleaning(True, False),
  "nmt_nfkc_lower": Cleaning(True, True),
  "nmt_nfkc_unaccented": Cleaning(False, False),
  "nmt_nfkc_cased": Cleaning(False, True),
}
RULE_NAMES = {cleaning: name for name, cleaning in PACKAGE_RULES.items()}


def options_for_load(
  lower_case: bool | None, keep_accents: bool | None
) -> dict[str, bool]:
  """Returns the options for `open_vocabulary.load` that are not None."""
  options = Cleaning(lower_case, keep_accents)._asdict()
  return {name: flag for name, flag in options.items() if flag is not None}


def check_same_cleaning(
  stored_cleaning: Cleaning, asked_cleaning: Cleaning, path: str
) -> None:
  """Checks that a caller asks for the cleaning of the vocabulary.

  Args:
    stored_cleaning: the cleaning that is stored with the vocabulary.
    asked_cleaning: the cleaning that the caller asks for.
    path: the vocabulary, for messages.

  Raises:
    UserError: the two settings differ.
  """
  for name, stored_flag, asked_flag in zip(
    Cleaning._fields, stored_cleaning, asked_cleaning, strict=True
  ):
    if None not in (stored_flag, asked_flag) and stored_flag != asked_flag:
      flag = {
        "lower_case": "--no-lower-case (lower_case=False)",
        "keep_accents": "--keep-accents (keep_accents=True)",
      }[name]
      if asked_flag == (name == "lower_case"):
        flag = f"{name}={asked_flag}"
      raise UserError(
        f"{path}: its pieces were learnt from text"
        f" {stored_cleaning.describe()}, and {flag} asks for text"
        f" {asked_cleaning.describe()}; leave that flag out, or train another"
        " vocabulary with it."
      )


# Unicode blocks of Latin, Greek and Cyrillic from U+0900 on. The marks in these
# blocks are accents.
_ACCENT_BLOCKS = (
  *((0x1AB0, 0x1B00), (0x1C80, 0x1C90), (0x1D00, 0x2000), (0x20D0, 0x2100)),
  *((0x2C60, 0x2C80), (0x2DE0, 0x2E00), (0xA640, 0xA6A0), (0xA700, 0xA800)),
)


class MarkCounter:
  """Counts marks that are stripped as accents although their letters need them.

  Examples are the vowel signs and tones of Indian, Thai, Khmer and Burmese
  letters, and the sign that turns か into が. Marks of Hebrew and Arabic are
  not counted, because writers may omit them.

  Attributes:
    num_changed: the number of characters that are such a mark or lose one.
    num_characters: the number of all characters.
    example: the first character that `num_changed` counts.
  """

  def __init__(self, by_combining_class: bool):
    """Prepares to count; no text is counted yet.

    Args:
      by_combining_class: if True, the stripped marks are characters with a
        combining class (SentencePiece); if False, they are characters of the
        category Mn (WordPiece).
    """
    self.num_changed = self.num_characters = 0
    self.example = ""
    points = (
      point
      for point in range(0x0900, 0xFB00)
      if not any(low <= point < high for low, high in _ACCENT_BLOCKS)
    )
    letters = "".join(
      chr(point)
      for point in points
      if _loses_marks(chr(point), by_combining_class)
    )
    self._pattern = re.compile(f"[{letters}]")

  def add(self, text: str) -> None:
    """Counts the marks of one more text."""
    self.num_characters += len(text)
    if not text.isascii():
      changed_characters = self._pattern.findall(text)
      self.num_changed += len(changed_characters)
      self.example = self.example or "".join(changed_characters[:1])

  def warning(self) -> str | None:
    """Returns a warning if `num_changed` is over 1% of all characters."""
    if self.num_changed <= 0.01 * self.num_characters:
      return None
    return (
      f"warning: {self.num_changed / self.num_characters:.0%} of the text are"
      f" marks that their letters need, or letters with such marks, for example"
      f" {self.example!r} (U+{ord(self.example):04X}); these marks are stripped"
      " like accents. --keep-accents keeps them."
    )


def _loses_marks(character: str, by_combining_class: bool) -> bool:
  """Returns True if stripping accents changes a character.

  Args:
    character: the character.
    by_combining_class: see `MarkCounter`.
  """
  decomposed = unicodedata.normalize("NFD", character)
  if by_combining_class:
    return any(map(unicodedata.combining, decomposed))
  return any(unicodedata.category(c) == "Mn" for c in decomposed)


@functools.lru_cache(maxsize=4)
def normalization_rules(cleaning: Cleaning) -> dict[str, str]:
  """Returns SentencePiece's rules of normalization for a cleaning.

  SentencePiece replaces the longest match of a rule and does not apply rules to
  the result. So the rule of a character must do all steps at once: NFKC with
  SentencePiece's own treatment of controls and spaces, ALBERT's replacement of
  quotes, lower case, and stripping of accents. Accents are characters with a
  combining class (google-research/albert tokenization.py). Sequences of a
  letter and marks that NFKC composes have rules as well, for every order of the
  marks.

  Args:
    cleaning: how capitals and accents are treated.

  Returns:
    Text -> its replacement, sorted by text.
  """
  import sentencepiece

  base = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
  changes = _sequences_to_compose() | dict(base.decompile())
  # NFKC changes U+FF5E, but SentencePiece's table does not. U+0085 ends a line,
  # and no piece holds a line end. ALBERT reads `` and '' as quotes.
  changes |= {"\uff5e": "~", "\x85": " ", "``": '"', "''": '"'}
  # SentencePiece would turn the zero-width non-joiner into a space. This would
  # split Persian words.
  del changes["\u200c"]
  changes = {
    character: character for character in _assigned_characters()
  } | changes
  cleaned = {
    text: _apply_cleaning(new, cleaning) for text, new in changes.items()
  }
  return {text: new for text, new in sorted(cleaned.items()) if text != new}


def _apply_cleaning(text: str, cleaning: Cleaning) -> str:
  """Applies a cleaning to a text that is in NFKC."""
  if not cleaning.keep_accents:
    letters = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in letters if not unicodedata.combining(c))
  if cleaning.lower_case:
    # Lower each letter alone, because `str.lower` changes a capital sigma in
    # different ways, depending on the letters around it.
    text = "".join(c.lower() for c in text)
  return unicodedata.normalize("NFC", text)


def _assigned_characters() -> Iterator[str]:
  """Yields all assigned characters except the characters for private use."""
  for character in map(chr, range(0x110000)):
    if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
      yield character


def _find_compositions() -> dict[str, dict[str, str]]:
  """Returns letter -> mark -> the character that NFC makes of the two."""
  composed: dict[str, dict[str, str]] = {}
  for character in _assigned_characters():
    points = unicodedata.decomposition(character).split()
    if len(points) == 2 and points[0][0] != "<":
      letter, mark = (chr(int(point, 16)) for point in points)
      if unicodedata.normalize("NFC", letter + mark) == character:
        composed.setdefault(letter, {})[mark] = character
  return composed


@functools.cache
def _sequences_to_compose() -> dict[str, str]:
  """Returns sequences of letters and marks -> the text that NFC makes of them.

  The sequences are of these kinds:
  * a letter with two marks, if NFC changes it;
  * a letter with one mark, since SentencePiece's tables lack newer characters;
  * a capital letter with a mark that composes only with its small letter;
  * marks in a different order, as vowelled Arabic and Hebrew are often typed.
  """
  sequences: dict[str, str] = {}
  for letter, marks in _find_compositions().items():
    texts = [x + mark for mark in marks for x in (letter, letter.upper())]
    for first_mark in {*marks, *_marks_of_script(letter)}:
      for second_mark in marks:
        text = letter + first_mark + second_mark
        composed = marks.get(first_mark, "") + second_mark
        texts += [
          t for t in (text, composed) if t != second_mark and not _is_nfc(t)
        ]
    sequences |= {text: unicodedata.normalize("NFC", text) for text in texts}
  for script_marks in _marks_by_script().values():
    # Take three marks in a row only for combining classes below 100, which
    # Hebrew points have.
    points = [m for m in script_marks if unicodedata.combining(m) < 100]
    for length, choices in ((2, script_marks), (3, points)):
      for sequence in itertools.product(choices, repeat=length):
        if not _is_nfc(text := "".join(sequence)):
          sequences[text] = unicodedata.normalize("NFC", text)
  return sequences


def _marks_by_script() -> dict[int, list[str]]:
  """Returns the combining marks of each block of 256 characters."""
  marks: dict[int, list[str]] = {}
  for character in _assigned_characters():
    if unicodedata.combining(character):
      marks.setdefault(ord(character) >> 8, []).append(character)
  return marks


@functools.cache
def misordered_marks_pattern() -> str:
  """Returns a pattern for the positions where NFC does more than SentencePiece.

  NFC and SentencePiece compose a letter with the marks that follow it directly.
  NFC also sorts marks by their combining classes, and composes a letter with a
  mark that follows another mark. The pattern matches the empty text between two
  such marks. If a caller inserts a character there that is no mark, NFC changes
  neither of the marks.
  """
  marks_by_class: dict[int, list[str]] = {}
  for character in _assigned_characters():
    if combining_class := unicodedata.combining(character):
      marks_by_class.setdefault(combining_class, []).append(character)
  marks: list[str] = []
  positions = []
  for combining_class in sorted(marks_by_class):
    if marks:  # `marks` have a lower class, so NFC puts them first.
      higher_marks = _character_class(marks_by_class[combining_class])
      positions.append(f"(?<={higher_marks})(?={_character_class(marks)})")
    marks += marks_by_class[combining_class]
  letters: dict[str, list[str]] = {}
  for letter, joins in _find_compositions().items():
    for mark in joins:
      letters.setdefault(mark, []).append(letter)
  never_composed_marks = _character_class(
    [mark for mark in marks if mark not in letters]
  )
  positions += [
    f"(?<={_character_class(letters_of_mark)}{never_composed_marks})(?={mark})"
    for mark, letters_of_mark in letters.items()
    if unicodedata.combining(mark)
  ]
  any_mark = _character_class(marks)
  return f"(?<={any_mark})(?={any_mark})(?:{'|'.join(positions)})"


def _character_class(characters: Iterable[str]) -> str:
  """Returns a pattern that matches one of the characters."""
  return f"[{''.join(map(re.escape, sorted(characters)))}]"


def _is_nfc(text: str) -> bool:
  return unicodedata.is_normalized("NFC", text)


def _marks_of_script(letter: str) -> list[str]:
  """Returns the combining marks that are written with letters of its script."""
  block = ord(letter) >> 8
  # The marks of Latin, Greek and Cyrillic letters are in the block from U+0300.
  if block < 0x05 or 0x1E <= block < 0x20:
    block = 0x03
  marks = map(chr, range(block << 8, (block + 1) << 8))
  return [mark for mark in marks if unicodedata.combining(mark)]
