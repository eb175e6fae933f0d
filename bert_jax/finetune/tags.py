"""Tags of words: with prefixes that mark entities, or without.

| scheme | begin, inside, end, alone |
|---|---|
| IOB (1 and 2) | B-, I-; in IOB1 B- stands only between neighbours of a type |
| IOBES | B-, I-, E-, S- |
| BILOU | B-, I-, L-, U- |
| BMES | B-, M-, E-, S- |
| BMEWO | B-, M-, E-, W- |

O is outside of all. Entities of one type may have the letter alone. Any other
tags, parts of speech for example, mark no entities: they are scored word by
word.
"""

import re
from collections.abc import Iterable, Sequence

_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW")
_PREFIXED = re.compile(r"([BIESLUMW])(?:-(.+))?", re.DOTALL)
# The letters of IOBES by those of any scheme.
_IOBES = {"L": "E", "U": "S", "M": "I", "W": "S"}
# The type that a letter alone stands for, as seqeval names it.
_UNTYPED = "_"
PUBLISHED = re.compile(r"O|[BI]-.+")
# Other spellings of a prefix: small letters, whole words, BD and ID of a scheme
# for entities with gaps; any sign between it and the type, or none.
_LETTER = (
  r"(begin(?:ning)?|inside|middle|end|last|single|unit|whole|[BIESLUMW][DH]?)"
)
_SIGN = r"[-_:./|\s\u2010-\u2015\u2212]+"
_SPELLINGS = (
  re.compile(f"{_LETTER}(?:{_SIGN}(.+))?", re.IGNORECASE | re.DOTALL),
  re.compile(f"(?P<type>.+){_SIGN}{_LETTER}", re.IGNORECASE | re.DOTALL),
  re.compile(r"([BI])(\w{2,})"),
)
_OUTSIDE = ("o", "0", "out", "outside")


def check_published(tag: str, where: str) -> None:
  """Raises ValueError unless a tag is O, B-TYPE or I-TYPE."""
  if not PUBLISHED.fullmatch(tag):
    raise ValueError(
      f"{where}: tag {tag!r:.60} is not O, B-TYPE or I-TYPE; entities are"
      " scored by these prefixes, write the tags with them."
    )


def sentence(tag: str) -> str:
  """What to say of a tag that is none of its task's scheme."""
  return (
    f"tag {tag!r:.60} is not O, B-TYPE or I-TYPE, as others are; entities are"
    " scored by these prefixes, write all tags with them, or none."
  )


def odd_one(tags: Iterable[str]) -> str | None:
  """A tag without prefix beside others that have B- or I-; None if none is."""
  others = sorted({*tags} - {"O"})
  typed = [tag for tag in others if tag[:2] in ("B-", "I-") and tag[2:]]
  plain = [tag for tag in others if not _PREFIXED.fullmatch(tag) or not tag[1:]]
  return plain[0] if typed and plain else None


def letters(tags: Iterable[str]) -> str | None:
  """The prefixes of the scheme that tags are of; None for tags without them.

  A set of tags with a tag of `odd_one` has none.
  """
  matches = [_PREFIXED.fullmatch(tag) for tag in {*tags} - {"O"}]
  if not matches or not all(matches):
    return None
  # Letters alone may be the tags of something else.
  if not any(match[2] or match[1] in "BI" for match in matches):
    return None
  used = {match[1] for match in matches}
  return next((scheme for scheme in _SCHEMES if used <= {*scheme}), None)


def warning(tags: Iterable[str]) -> str | None:
  """Returns a line if tags look like entities in a spelling of another kind.

  They do if one type has the begin and another place of an entity, or if all
  tags beside that for "outside" have a prefix, or all have a suffix.

  Args:
    tags: the labels of a task.
  """
  tags = sorted({*tags})
  if letters(tags) is not None:
    return None
  inside = [tag for tag in tags if tag.lower() not in _OUTSIDE]
  for spelling in _SPELLINGS:
    places: dict[str, dict[str, str]] = {}
    for tag in inside:
      match = spelling.fullmatch(tag)
      if not match:
        continue
      first, second = match.groups()
      if "type" in spelling.groupindex:
        first, second = second, first
      places.setdefault((second or "").lower(), {})[first[0].upper()] = tag
    named = next(
      (
        [of_type["B"], of_type[letter]]
        for of_type in places.values()
        for letter in "IMEL"
        if "B" in of_type and letter in of_type
      ),
      [],
    )
    typed = spelling is not _SPELLINGS[-1] and any(places)
    alike = all(map(spelling.fullmatch, inside)) and inside != tags
    if not named and typed and alike:
      named = inside[:2]
    if named and (typed or inside != tags):
      return (
        f"warning: tags such as {' and '.join(map(repr, named))} look like"
        " entities, but their scheme is not known: they are scored word by"
        " word, by accuracy. To score entities, write the tags as O, B-TYPE and"
        " I-TYPE."
      )
  return None


def all_labels(tags: Iterable[str]) -> tuple[str, ...]:
  """The labels of a task that has such tags.

  O first; every type of entity gets all tags of its scheme, found or not. Tags
  without prefixes are as they stand, sorted.
  """
  tags = {*tags}
  scheme = letters(tags)
  if scheme is None:
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))
  types = {_PREFIXED.fullmatch(tag)[2] or "" for tag in tags - {"O"}}
  pairs = ((letter, kind) for kind in sorted(types) for letter in scheme)
  return ("O", *(f"{p}-{kind}" if kind else p for p, kind in pairs))


def to_iobes(tag: str) -> str | None:
  """A tag of any scheme with the letters of IOBES; None without a prefix."""
  if tag == "O":
    return tag
  match = _PREFIXED.fullmatch(tag)
  if not match:
    return None
  return f"{_IOBES.get(match[1], match[1])}-{match[2] or _UNTYPED}"


def to_iob2(tags: Sequence[str]) -> list[str]:
  """IOB1, where B- stands only between neighbours of a type, as IOB2.

  The files of CoNLL-2003 are in IOB1; IOB2 stays as it is.
  """
  converted, before = [], "O"
  for tag in tags:
    begins = tag[:2] == "I-" and before[2:] != tag[2:]
    converted.append("B-" + tag[2:] if begins else tag)
    before = tag
  return converted
