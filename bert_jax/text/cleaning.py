"""Cleans text before a vocabulary is trained and before tokenization.

Both steps must clean text in the same way. So the cleaning is a setting that
is stored with the vocabulary. A SentencePiece `.model` stores this setting as
its normalization rules, and `tokenizer.json` as its normalizer. A vocabulary in
a file of a different format has the setting in `tokenizer_config.json` beside
the file.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bert_jax.messages import UserError, by_caller


class Cleaning(NamedTuple):
  """Says how cleaning treats capitals and accents; None means not set.

  Attributes:
    lower_case: True if text is changed to lower case.
    keep_accents: True if accents stay.
  """

  lower_case: bool | None = None
  keep_accents: bool | None = None

  def with_defaults(self, lower_case: bool = True) -> "Cleaning":
    """Returns a copy in which no field is None.

    If `keep_accents` is None, accents are stripped if text is changed to lower
    case, and otherwise kept.

    Args:
      lower_case: the value of the field `lower_case` if that field is None.
    """
    is_lower_case = lower_case if self.lower_case is None else self.lower_case
    keeps_accents = (
      not is_lower_case if self.keep_accents is None else self.keep_accents
    )
    return Cleaning(is_lower_case, keeps_accents)

  def describe(self) -> str:
    """Describes the setting in words, for messages."""
    case = {True: "in lower case", False: "with capitals", None: ""}
    accents = {True: "with accents", False: "without accents", None: ""}
    phrases = [case[self.lower_case], accents[self.keep_accents]]
    return " and ".join(filter(None, phrases))


# Names of normalizers in a `.model`. SentencePiece writes the names in
# `FOLDING_RULES`, which fold case and keep accents. This package writes the
# names in `PACKAGE_RULES`: name -> the cleaning that the rules apply.
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
  """Returns the arguments that are not None, for `open_vocabulary.load`."""
  settings = Cleaning(lower_case, keep_accents)._asdict()
  return {name: flag for name, flag in settings.items() if flag is not None}


def check_same_cleaning(
  stored_cleaning: Cleaning, asked_cleaning: Cleaning, path: str
) -> None:
  """Checks that a caller asks for the cleaning that the vocabulary has.

  A field that is None in either cleaning is not compared.

  Args:
    stored_cleaning: the cleaning that is stored with the vocabulary.
    asked_cleaning: the cleaning that the caller asks for.
    path: the file or folder of the vocabulary, for messages.

  Raises:
    UserError: the two cleanings differ.
  """
  for name, stored, asked in zip(
    Cleaning._fields, stored_cleaning, asked_cleaning, strict=True
  ):
    if None not in (stored, asked) and stored != asked:
      flag_text = {
        "lower_case": "--no-lower-case (lower_case=False)",
        "keep_accents": "--keep-accents (keep_accents=True)",
      }[name]
      # The only flags are --no-lower-case and --keep-accents.
      if asked == (name == "lower_case"):
        flag_text = f"{name}={asked}"
      raise UserError(
        f"{path}: its pieces were learnt from text"
        f" {stored_cleaning.describe()}, and {flag_text} asks for text"
        f" {asked_cleaning.describe()}; leave that flag out, or train another"
        " vocabulary with it."
      )


# Ranges from U+0900 on that hold blocks of Latin, Greek and Cyrillic. The marks
# in these ranges are accents.
_ACCENT_BLOCKS = (
  *((0x1AB0, 0x1B00), (0x1C80, 0x1C90), (0x1D00, 0x2000), (0x20D0, 0x2100)),
  *((0x2C60, 0x2C80), (0x2DE0, 0x2E00), (0xA640, 0xA6A0), (0xA700, 0xA800)),
)


class MarkCounter:
  """Counts marks that cleaning strips as accents, but that letters need.

  Examples are the vowel signs and tones of Indian, Thai, Khmer and Burmese
  letters, and the sign that turns か into が. Marks of Hebrew and Arabic are
  not counted, because writers may omit them.

  Attributes:
    num_changed: the number of characters that are such marks, or letters that
      lose such a mark.
    num_characters: the number of all characters in the texts.
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
    code_points = (
      code_point
      for code_point in range(0x0900, 0xFB00)
      if not any(begin <= code_point < end for begin, end in _ACCENT_BLOCKS)
    )
    changed_characters = "".join(
      chr(code_point)
      for code_point in code_points
      if _loses_marks(chr(code_point), by_combining_class)
    )
    self._pattern = re.compile(f"[{changed_characters}]")

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
    python_text = "family='roberta', whose vocabulary is of bytes,"
    return (
      f"warning: {self.num_changed / self.num_characters:.0%} of the text are"
      f" marks that their letters need, or letters with such marks, for example"
      f" {self.example!r} (U+{ord(self.example):04X}); these marks are stripped"
      f" like accents. {by_caller('--keep-accents', python_text)} keeps them."
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
  SentencePiece's special treatment of controls and spaces, ALBERT's replacement
  of quotes, lower case, and stripping of accents. Accents are characters with a
  combining class (google-research/albert tokenization.py). A letter and marks
  that NFKC composes have a rule for every order of the marks.

  Args:
    cleaning: how capitals and accents are treated.

  Returns:
    Text -> its replacement, for every text that is changed; sorted by text.
  """
  import sentencepiece

  nmt_nfkc_normalizer = sentencepiece.SentencePieceNormalizer(
    rule_name="nmt_nfkc"
  )
  replacements = _sequences_to_compose() | dict(nmt_nfkc_normalizer.decompile())
  # NFKC changes U+FF5E, but SentencePiece's table does not. U+0085 ends a line,
  # and no piece may hold a line end. ALBERT changes `` and '' to a quote.
  replacements |= {"\uff5e": "~", "\x85": " ", "``": '"', "''": '"'}
  # SentencePiece would turn the zero-width non-joiner into a space. This would
  # split Persian words.
  del replacements["\u200c"]
  replacements = {
    character: character for character in _assigned_characters()
  } | replacements
  cleaned_replacements = {
    text: _apply_cleaning(replacement, cleaning)
    for text, replacement in replacements.items()
  }
  return {
    text: replacement
    for text, replacement in sorted(cleaned_replacements.items())
    if text != replacement
  }


def _apply_cleaning(text: str, cleaning: Cleaning) -> str:
  """Applies a cleaning to a text that is in NFKC."""
  if not cleaning.keep_accents:
    decomposed = unicodedata.normalize("NFKD", text)
    text = "".join(
      character
      for character in decomposed
      if not unicodedata.combining(character)
    )
  if cleaning.lower_case:
    # Lower each letter alone, because `str.lower` changes a capital sigma in
    # different ways, depending on the letters around it.
    text = "".join(character.lower() for character in text)
  return unicodedata.normalize("NFC", text)


def _assigned_characters() -> Iterator[str]:
  """Yields all assigned characters except the characters for private use."""
  for character in map(chr, range(0x110000)):
    if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
      yield character


def _find_compositions() -> dict[str, dict[str, str]]:
  """Returns letter -> mark -> the character that NFC makes of the two."""
  compositions: dict[str, dict[str, str]] = {}
  for character in _assigned_characters():
    hex_codes = unicodedata.decomposition(character).split()
    if len(hex_codes) == 2 and hex_codes[0][0] != "<":
      letter, mark = (chr(int(hex_code, 16)) for hex_code in hex_codes)
      if unicodedata.normalize("NFC", letter + mark) == character:
        compositions.setdefault(letter, {})[mark] = character
  return compositions


@functools.cache
def _sequences_to_compose() -> dict[str, str]:
  """Returns sequences of letters and marks -> the text that NFC makes of them.

  The sequences are of these kinds:
  * a letter with two marks, if NFC changes it;
  * a letter with one mark, since SentencePiece's tables lack newer characters;
  * a capital letter with a mark that composes with its small letter;
  * two or three marks of one block of Unicode that are not in NFC's order,
    because marks of Arabic and Hebrew are often typed in a different order.
  """
  nfc_by_sequence: dict[str, str] = {}
  for letter, composed_by_mark in _find_compositions().items():
    texts = [
      base_letter + mark
      for mark in composed_by_mark
      for base_letter in (letter, letter.upper())
    ]
    for first_mark in {*composed_by_mark, *_marks_of_script(letter)}:
      for second_mark in composed_by_mark:
        text = letter + first_mark + second_mark
        with_first_composed = composed_by_mark.get(first_mark, "") + second_mark
        texts += [
          candidate
          for candidate in (text, with_first_composed)
          if candidate != second_mark and not _is_nfc(candidate)
        ]
    nfc_by_sequence |= {
      text: unicodedata.normalize("NFC", text) for text in texts
    }
  for block_marks in _marks_by_block().values():
    # There are rules for three marks only if their combining classes are below
    # 100, as those of Hebrew and Arabic vowels are.
    low_class_marks = [
      mark for mark in block_marks if unicodedata.combining(mark) < 100
    ]
    for length, choices in ((2, block_marks), (3, low_class_marks)):
      for sequence in itertools.product(choices, repeat=length):
        if not _is_nfc(text := "".join(sequence)):
          nfc_by_sequence[text] = unicodedata.normalize("NFC", text)
  return nfc_by_sequence


def _marks_by_block() -> dict[int, list[str]]:
  """Returns block -> combining marks; a block's number is code point // 256."""
  marks_by_block: dict[int, list[str]] = {}
  for character in _assigned_characters():
    if unicodedata.combining(character):
      marks_by_block.setdefault(ord(character) >> 8, []).append(character)
  return marks_by_block


@functools.cache
def misordered_marks_pattern() -> str:
  """Returns a pattern for the positions where NFC does more than SentencePiece.

  NFC and SentencePiece compose a letter with the marks that follow it directly.
  NFC also sorts marks by their combining classes, and composes a letter with a
  mark that follows another mark. The pattern matches the empty text between two
  marks if NFC would swap the marks, or would compose the second mark with the
  letter. If a caller inserts a character that is no mark at such a position,
  NFC neither swaps nor composes these marks.
  """
  marks_by_class: dict[int, list[str]] = {}
  for character in _assigned_characters():
    if combining_class := unicodedata.combining(character):
      marks_by_class.setdefault(combining_class, []).append(character)
  marks: list[str] = []
  patterns = []
  for combining_class in sorted(marks_by_class):
    if marks:  # All of `marks` have lower classes, so NFC puts them first.
      higher_marks = _character_class(marks_by_class[combining_class])
      patterns.append(f"(?<={higher_marks})(?={_character_class(marks)})")
    marks += marks_by_class[combining_class]
  letters_by_mark: dict[str, list[str]] = {}
  for letter, composed_by_mark in _find_compositions().items():
    for mark in composed_by_mark:
      letters_by_mark.setdefault(mark, []).append(letter)
  never_composed_marks = _character_class(
    [mark for mark in marks if mark not in letters_by_mark]
  )
  patterns += [
    f"(?<={_character_class(letters_of_mark)}{never_composed_marks})(?={mark})"
    for mark, letters_of_mark in letters_by_mark.items()
    if unicodedata.combining(mark)
  ]
  any_mark = _character_class(marks)
  return f"(?<={any_mark})(?={any_mark})(?:{'|'.join(patterns)})"


def _character_class(characters: Iterable[str]) -> str:
  """Returns a regular expression for any one of the characters."""
  return f"[{''.join(map(re.escape, sorted(characters)))}]"


def _is_nfc(text: str) -> bool:
  return unicodedata.is_normalized("NFC", text)


def _marks_of_script(letter: str) -> list[str]:
  """Returns the combining marks that are written with the letter's script."""
  block = ord(letter) >> 8
  # The marks of Latin, Greek and Cyrillic letters are from U+0300 to U+03FF.
  if block < 0x05 or 0x1E <= block < 0x20:
    block = 0x03
  marks = map(chr, range(block << 8, (block + 1) << 8))
  return [mark for mark in marks if unicodedata.combining(mark)]
