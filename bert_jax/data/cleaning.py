"""How text is cleaned before pieces are learnt from it, and before it is cut.

Both must be alike, so this is one setting, which travels with the vocabulary:
in the `.model` of SentencePiece as its rules of normalisation, in
`tokenizer.json` as its normaliser, and for other files in a
`tokenizer_config.json` beside them.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Cleaning(NamedTuple):
  """What becomes of capitals and accents; None where nobody said.

  Attributes:
    lower_case: capitals become small letters.
    keep_accents: accents stay.
  """

  lower_case: bool | None = None
  keep_accents: bool | None = None

  def filled(self, lower_case: bool = True) -> "Cleaning":
    """Fills in what nobody said: accents go where capitals go."""
    lower = lower_case if self.lower_case is None else self.lower_case
    keep = not lower if self.keep_accents is None else self.keep_accents
    return Cleaning(lower, keep)

  def words(self) -> str:
    """Says it in words, for messages."""
    case = {True: "in lower case", False: "with capitals", None: ""}
    accents = {True: "with accents", False: "without accents", None: ""}
    said = [case[self.lower_case], accents[self.keep_accents]]
    return " and ".join(filter(None, said))


# Names of normalisers in a `.model`, each with the cleaning that is among its
# rules. SentencePiece's own two that fold case keep accents.
FOLDING = ("nmt_nfkc_cf", "nfkc_cf")
TRAINED = {
  "nmt_nfkc_lower_unaccented": Cleaning(True, False),
  "nmt_nfkc_lower": Cleaning(True, True),
  "nmt_nfkc_unaccented": Cleaning(False, False),
  "nmt_nfkc_cased": Cleaning(False, True),
}
NAMES = {cleaning: name for name, cleaning in TRAINED.items()}


def asked(
  lower_case: bool | None, keep_accents: bool | None
) -> dict[str, bool]:
  """Returns the two as options of `vocabulary_files.load`, without None."""
  options = Cleaning(lower_case, keep_accents)._asdict()
  return {name: value for name, value in options.items() if value is not None}


def check_alike(learnt: Cleaning, wanted: Cleaning, path: str) -> None:
  """Compares the cleaning that came with a vocabulary with a caller's.

  Args:
    learnt: what came with it.
    wanted: what the caller asks for.
    path: the vocabulary, for messages.

  Raises:
    ValueError: the caller asks for something else.
  """
  for name, was, now in zip(Cleaning._fields, learnt, wanted, strict=True):
    if None not in (was, now) and was != now:
      flag = {
        "lower_case": "--no-lower-case (lower_case=False)",
        "keep_accents": "--keep_accents (keep_accents=True)",
      }[name]
      if now == (name == "lower_case"):
        flag = f"{name}={now}"
      raise ValueError(
        f"{path}: its pieces are those of text {learnt.words()}, and"
        f" {flag} asks for text {wanted.words()}; leave that out, or train"
        " another vocabulary with it."
      )


# Blocks of marks and letters of Latin, Greek and Cyrillic beyond U+0900, where
# marks are accents.
_ACCENTED = (
  *((0x1AB0, 0x1B00), (0x1C80, 0x1C90), (0x1D00, 0x2000), (0x20D0, 0x2100)),
  *((0x2C60, 0x2C80), (0x2DE0, 0x2E00), (0xA640, 0xA6A0), (0xA700, 0xA800)),
)


class Marks:
  """Counts marks that stripping accents takes from letters that need them.

  The vowels and tones of Indian, Thai, Khmer and Burmese letters, for example,
  and the signs that make a か of a が. Those of Hebrew and Arabic may be left
  out in writing; they are not counted.

  Attributes:
    lost: how many there were.
    characters: how many characters there were.
    example: one of those that lost a mark.
  """

  def __init__(self, combining: bool):
    """Starts to count.

    Args:
      combining: marks with a combining class are stripped (SentencePiece), not
        those that take no space (WordPiece).
    """
    self.lost = self.characters = 0
    self.example = ""
    points = (
      point
      for point in range(0x0900, 0xFB00)
      if not any(low <= point < high for low, high in _ACCENTED)
    )
    letters = "".join(
      chr(point) for point in points if _loses(chr(point), combining)
    )
    self._pattern = re.compile(f"[{letters}]")

  def add(self, text: str) -> None:
    """Counts those of a text."""
    self.characters += len(text)
    if not text.isascii():
      lost = self._pattern.findall(text)
      self.lost += len(lost)
      self.example = self.example or "".join(lost[:1])

  def warning(self) -> str | None:
    """Returns a line if over 1% of the characters lose a mark."""
    if self.lost <= 0.01 * self.characters:
      return None
    return (
      f"warning: {self.lost / self.characters:.0%} of the text are marks that"
      f" their letters need, or letters with them, such as {self.example!r}"
      f" (U+{ord(self.example):04X}); they are stripped as accents are."
      " --keep_accents keeps them."
    )


def _loses(character: str, combining: bool) -> bool:
  parts = unicodedata.normalize("NFD", character)
  if combining:
    return any(map(unicodedata.combining, parts))
  return any(unicodedata.category(part) == "Mn" for part in parts)


@functools.lru_cache(maxsize=4)
def rules(cleaning: Cleaning) -> dict[str, str]:
  """Returns SentencePiece's rules of normalisation for a cleaning.

  SentencePiece replaces the longest match of a rule and does not look at the
  result again. So every character has a rule that says all at once: NFKC with
  SentencePiece's own treatment of controls and spaces, quotes as ALBERT has
  them, lower case, and accents stripped, which are characters with a combining
  class (google-research/albert tokenization.py). The sequences of a letter and
  marks that NFKC puts together have rules as well, in whatever order the marks
  stand.

  Args:
    cleaning: what becomes of capitals and accents.

  Returns:
    Text -> what replaces it, sorted.
  """
  import sentencepiece

  base = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
  changes = _sequences() | dict(base.decompile())
  # NFKC changes the first, which SentencePiece does not; no piece holds an end
  # of a line; `` and '' are quotes.
  changes |= {"\uff5e": "~", "\x85": " ", "``": '"', "''": '"'}
  # SentencePiece makes a space of it, inside of Persian words.
  del changes["\u200c"]
  changes = {character: character for character in _characters()} | changes
  replaced = {text: _clean(new, cleaning) for text, new in changes.items()}
  return {text: new for text, new in sorted(replaced.items()) if text != new}


def _clean(text: str, cleaning: Cleaning) -> str:
  """Does to a text in NFKC what `cleaning` says."""
  if not cleaning.keep_accents:
    letters = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in letters if not unicodedata.combining(c))
  if cleaning.lower_case:
    # Letter by letter: a capital sigma does not depend on what follows it.
    text = "".join(c.lower() for c in text)
  return unicodedata.normalize("NFC", text)


def _characters() -> Iterator[str]:
  """All assigned characters, private ones apart."""
  for character in map(chr, range(0x110000)):
    if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
      yield character


def _composed() -> dict[str, dict[str, str]]:
  """Returns letter -> mark -> the character that both together are."""
  composed: dict[str, dict[str, str]] = {}
  for character in _characters():
    parts = unicodedata.decomposition(character).split()
    if len(parts) == 2 and parts[0][0] != "<":
      letter, mark = (chr(int(part, 16)) for part in parts)
      if unicodedata.normalize("NFC", letter + mark) == character:
        composed.setdefault(letter, {})[mark] = character
  return composed


@functools.cache
def _sequences() -> dict[str, str]:
  """Returns what NFC does to letters and marks, where it is not one character.

  That are letters with two marks that NFC does not leave as they stand, and
  capitals with a mark that only the small letter makes a character with;
  letters with a mark that are younger than SentencePiece's tables; and marks in
  another order, as vowelled Arabic and Hebrew are often typed.
  """
  sequences: dict[str, str] = {}
  for letter, marks in _composed().items():
    texts = [x + mark for mark in marks for x in (letter, letter.upper())]
    for first in {*marks, *_marks_beside(letter)}:
      for second in marks:
        text = letter + first + second
        composed = marks.get(first, "") + second
        texts += [t for t in (text, composed) if t != second and not _is_nfc(t)]
    sequences |= {text: unicodedata.normalize("NFC", text) for text in texts}
  for marks in _marks_by_script().values():
    # The three levels of Hebrew points, of which fewer are in question.
    points = [mark for mark in marks if unicodedata.combining(mark) < 100]
    for length, choices in ((2, marks), (3, points)):
      for parts in itertools.product(choices, repeat=length):
        if not _is_nfc(text := "".join(parts)):
          sequences[text] = unicodedata.normalize("NFC", text)
  return sequences


def _marks_by_script() -> dict[int, list[str]]:
  """Returns the combining marks of each block of 256 characters."""
  marks: dict[int, list[str]] = {}
  for character in _characters():
    if unicodedata.combining(character):
      marks.setdefault(ord(character) >> 8, []).append(character)
  return marks


@functools.cache
def reordered_marks() -> str:
  """Returns a pattern of the places where NFC does more than SentencePiece.

  Both put a letter and the marks after it together. NFC also sorts marks, and
  takes a mark to its letter from behind another one. The pattern matches
  between two marks (it has no width); a character there that is no mark keeps
  both apart.
  """
  marks: dict[int, list[str]] = {}
  for character in _characters():
    if number := unicodedata.combining(character):
      marks.setdefault(number, []).append(character)
  lower: list[str] = []
  places = []
  for number in sorted(marks):
    if lower:
      places.append(f"(?<={_one_of(marks[number])})(?={_one_of(lower)})")
    lower += marks[number]
  composed = _composed()
  joined = {mark for joins in composed.values() for mark in joins}
  letters: dict[str, list[str]] = {}
  for letter, joins in composed.items():
    for mark in joins:
      letters.setdefault(mark, []).append(letter)
  alone = _one_of([mark for mark in lower if mark not in joined])
  places += [
    f"(?<={_one_of(before)}{alone})(?={mark})"
    for mark, before in letters.items()
    if unicodedata.combining(mark)
  ]
  return f"(?<={_one_of(lower)})(?={_one_of(lower)})(?:{'|'.join(places)})"


def _one_of(characters: Iterable[str]) -> str:
  return f"[{''.join(map(re.escape, sorted(characters)))}]"


def _is_nfc(text: str) -> bool:
  return unicodedata.is_normalized("NFC", text)


def _marks_beside(letter: str) -> list[str]:
  """Returns the combining marks that stand with letters of its script."""
  block = ord(letter) >> 8
  # Latin, Greek and Cyrillic letters have their marks in a block of their own.
  if block < 0x05 or 0x1E <= block < 0x20:
    block = 0x03
  marks = map(chr, range(block << 8, (block + 1) << 8))
  return [mark for mark in marks if unicodedata.combining(mark)]
