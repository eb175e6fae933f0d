"""Reads tags of words: tags with prefixes mark entities, other tags do not.

| scheme | begin, inside, end, single word |
|---|---|
| IOB (1 and 2) | B-, I-; in IOB1, B- only after an entity of the same type |
| IOBES | B-, I-, E-, S- |
| BILOU | B-, I-, L-, U- |
| BMES | B-, M-, E-, S- |
| BMEWO | B-, M-, E-, W- |

The tag O marks a word outside of all entities. If all entities are of one type,
a tag may be the letter without a type. Tags of no scheme, for example parts of
speech, mark no entities; they are scored word by word.
"""

import re
from collections.abc import Iterable, Sequence

from bert_jax.messages import UserError

_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW")
_PREFIXED_TAG_PATTERN = re.compile(r"([BIESLUMW])(?:-(.+))?", re.DOTALL)
# A prefix letter that IOBES lacks -> the letter of IOBES for it.
_IOBES_LETTERS = {"L": "E", "U": "S", "M": "I", "W": "S"}
# The type of a tag that is only a letter, as seqeval names it.
_NO_TYPE = "_"
_IOB_TAG_PATTERN = re.compile(r"O|[BI]-.+")
# Other spellings of a prefix: small letters, whole words, and a letter with D
# or H, as in BD and IH of schemes for entities with gaps. A sign may separate a
# prefix and the type.
_PREFIX = (
  r"(begin(?:ning)?|inside|middle|end|last|single|unit|whole|[BIESLUMW][DH]?)"
)
_SEPARATOR = r"[-_:./|\s\u2010-\u2015\u2212]+"
# Three spellings: a prefix with or without a type, a type before its suffix,
# and B or I directly before a type.
_SPELLING_PATTERNS = (
  re.compile(f"{_PREFIX}(?:{_SEPARATOR}(.+))?", re.IGNORECASE | re.DOTALL),
  re.compile(f"(?P<type>.+){_SEPARATOR}{_PREFIX}", re.IGNORECASE | re.DOTALL),
  re.compile(r"([BI])(\w{2,})"),
)
_OUTSIDE_TAGS = ("o", "0", "out", "outside")


def check_prefix(tag: str, location: str) -> None:
  """Raises ValueError unless a tag is O, B-TYPE or I-TYPE."""
  if not _IOB_TAG_PATTERN.fullmatch(tag):
    raise UserError(
      f"{location}: tag {tag!r:.60} is not O, B-TYPE or I-TYPE; entities are"
      " scored by these prefixes, so write the tags with them."
    )


def unprefixed_message(tag: str) -> str:
  """Returns the error message for a tag that `find_unprefixed` found."""
  return (
    f"tag {tag!r:.60} is not O, B-TYPE or I-TYPE, as other tags are; entities"
    " are scored by these prefixes, so write them in all tags, or in no tag."
  )


def find_unprefixed(tags: Iterable[str]) -> str | None:
  """Returns a tag without prefix if another begins with B- or I-, else None."""
  entity_tags = sorted({*tags} - {"O"})
  prefixed_tags = [
    tag for tag in entity_tags if tag[:2] in ("B-", "I-") and tag[2:]
  ]
  unprefixed_tags = [
    tag
    for tag in entity_tags
    if not _PREFIXED_TAG_PATTERN.fullmatch(tag) or not tag[1:]
  ]
  return unprefixed_tags[0] if prefixed_tags and unprefixed_tags else None


def scheme_letters(tags: Iterable[str]) -> str | None:
  """Returns the letters of the tags' scheme; None if they have no scheme.

  In a scheme, every tag but O has one of the scheme's letters as its prefix.
  """
  entity_tags = {*tags} - {"O"}
  matches = [
    match
    for tag in entity_tags
    if (match := _PREFIXED_TAG_PATTERN.fullmatch(tag))
  ]
  if not matches or len(matches) < len(entity_tags):
    return None
  # Letters without types mark no entities unless B or I is among them.
  if not any(match[2] or match[1] in "BI" for match in matches):
    return None
  used_letters = {match[1] for match in matches}
  return next(
    (scheme for scheme in _SCHEMES if used_letters <= {*scheme}), None
  )


def spelling_warning(tags: Iterable[str]) -> str | None:
  """Returns a warning if tags look like entities in an unknown spelling.

  Tags look like entities in two cases. In the first, one type has a tag for the
  beginning and a tag for another position in an entity. In the second, all tags
  except the tag for "outside" have a prefix, or all of them have a suffix.

  Args:
    tags: the labels of a task.
  """
  tags = sorted({*tags})
  if scheme_letters(tags) is not None:
    return None
  entity_tags = [tag for tag in tags if tag.lower() not in _OUTSIDE_TAGS]
  for pattern in _SPELLING_PATTERNS:
    # Type of entity -> first letter of the spelled prefix -> tag.
    tags_by_type: dict[str, dict[str, str]] = {}
    for tag in entity_tags:
      match = pattern.fullmatch(tag)
      if not match:
        continue
      prefix, entity_type = match.groups()
      if "type" in pattern.groupindex:
        prefix, entity_type = entity_type, prefix
      tags_by_type.setdefault((entity_type or "").lower(), {})[
        prefix[0].upper()
      ] = tag
    example_tags = next(
      (
        [tag_by_letter["B"], tag_by_letter[letter]]
        for tag_by_letter in tags_by_type.values()
        for letter in "IMEL"
        if "B" in tag_by_letter and letter in tag_by_letter
      ),
      [],
    )
    has_types = pattern is not _SPELLING_PATTERNS[-1] and any(tags_by_type)
    all_tags_match = (
      all(map(pattern.fullmatch, entity_tags)) and entity_tags != tags
    )
    if not example_tags and has_types and all_tags_match:
      example_tags = entity_tags[:2]
    if example_tags and (has_types or entity_tags != tags):
      return (
        f"warning: tags such as {' and '.join(map(repr, example_tags))} look"
        " like entities, but their scheme is not known: they are scored word by"
        " word, by accuracy. To score entities, write the tags as O, B-TYPE and"
        " I-TYPE."
      )
  return None


def all_labels(tags: Iterable[str]) -> tuple[str, ...]:
  """Returns the labels of a task whose examples have these tags.

  O is the first label. Every type of entity gets all tags of the scheme, also
  tags that no example has. Tags without prefixes are sorted and not changed.
  """
  tags = {*tags}
  scheme = scheme_letters(tags)
  if scheme is None:
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))
  matches = map(_PREFIXED_TAG_PATTERN.fullmatch, tags - {"O"})
  types = {match[2] or "" for match in matches if match}
  letters_and_types = (
    (letter, entity_type) for entity_type in sorted(types) for letter in scheme
  )
  return (
    "O",
    *(
      f"{letter}-{entity_type}" if entity_type else letter
      for letter, entity_type in letters_and_types
    ),
  )


def to_iobes(tag: str) -> str | None:
  """Converts a tag of any scheme to IOBES; None for a tag without prefix."""
  if tag == "O":
    return tag
  match = _PREFIXED_TAG_PATTERN.fullmatch(tag)
  if not match:
    return None
  return f"{_IOBES_LETTERS.get(match[1], match[1])}-{match[2] or _NO_TYPE}"


def entities(tags: Sequence[str | None]) -> list[tuple[str, int, int]]:
  """Returns the entities of a sentence's tags, of any scheme.

  Tags of a model may break the rules of their scheme. An entity begins at every
  tag with B or S of IOBES. It also begins at a tag with I or E if the previous
  tag is O, has a different type, or ends an entity.

  Args:
    tags: the tag of each word; None counts as O.

  Returns:
    For each entity its type, and its words [begin, end). The type of a tag
    that is only a letter is "_".
  """
  spans: list[tuple[str, int, int]] = []
  is_open = False
  for i, tag in enumerate(tags):
    letter, _, entity_type = (to_iobes(tag or "O") or "O").partition("-")
    if letter == "O":
      is_open = False
      continue
    continues_entity = (
      is_open and letter in "IE" and spans[-1][0] == entity_type
    )
    begin = spans.pop()[1] if continues_entity else i
    spans.append((entity_type, begin, i + 1))
    is_open = letter in "BI"
  return spans


def to_iob2(tags: Sequence[str]) -> list[str]:
  """Converts the tags of a sentence from IOB1 to IOB2; IOB2 is not changed.

  The files of CoNLL-2003 are in IOB1, where B- is only used for an entity that
  directly follows an entity of the same type.
  """
  new_tags, previous_tag = [], "O"
  for tag in tags:
    begins_entity = tag[:2] == "I-" and previous_tag[2:] != tag[2:]
    new_tags.append("B-" + tag[2:] if begins_entity else tag)
    previous_tag = tag
  return new_tags
