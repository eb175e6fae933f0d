"""Reads real English on any machine: docstrings of installed packages.

The source files are parsed, and never imported. A document is the prose of one
module. Documentation repeats itself: descriptions of arguments are copied from
one function to another, and several versions of an API are installed side by
side. So a paragraph is dropped if too many of its word 5-grams occur in earlier
paragraphs. Without this rule, 30% of the 8-grams of held-out modules occur in
modules for training.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_jax.messages import UserError

# The packages that are read if they are installed. Python's standard library is
# read, too; its name is `STANDARD_LIBRARY`.
PACKAGES = ("tensorflow", "scipy", "numpy", "jax", "keras")
STANDARD_LIBRARY = "python"
# A paragraph of prose has at least this many words.
MIN_WORDS = 12
# A paragraph is dropped if more than this share of its n-grams occurs in
# earlier paragraphs. An n-gram has `NGRAM_WORDS` words.
MAX_SEEN_SHARE = 0.4
NGRAM_WORDS = 5

# Folders with little prose; TensorFlow's `_api` has only imports.
_SKIPPED_FOLDERS = {"_api", "site-packages", "test", "testing", "tests"}

# Match a directive of reStructuredText, and the target of a link or citation.
_DIRECTIVE_PATTERN = re.compile(r"\s*\.\. [\w-]+::")
_REFERENCE_PATTERN = re.compile(r"\s*\.\. (\[|_)")
# Matches the line under a heading.
_UNDERLINE_PATTERN = re.compile(r"\s*([-=~^*#+`])\1{2,}\s*$")
# Matches the heading of a section in Google's style, such as `Args:`.
_SECTION_PATTERN = re.compile(r"\s*[A-Z]\w+( \w+)?:$")
# The marks that begin the entry of a list.
_BULLET_PATTERN = re.compile(r"\s*([-*+•]|\(?\d+[.)])\s+(?=\S)")
# Matches numpydoc's `x, y : array_like`. The lines below it describe x and y.
_NUMPY_ENTRY_PATTERN = re.compile(r"\s*[\w*`.,\[\]{}\\ ]{1,60} : \S")
# Matches Google's `name (type): description`.
_GOOGLE_ENTRY_PATTERN = re.compile(r"\s*[*`]*[\w.]+`?( \([^)]*\))?: +(?=\S)")
# Patterns of markup -> the text that replaces them.
_MARKUP_RULES = (
  (re.compile(r":[\w:.+-]+:`~?([^`<]*)( <[^`]*>)?`"), r"\1"),
  (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
  (re.compile(r"`([^`<]*) <[^`]*>`_+"), r"\1"),
  (re.compile(r"\s*\[[\w]+\]_"), ""),
  (re.compile(r"`+"), ""),
  (re.compile(r"\*\*?(\w[^*\s]*)\*\*?"), r"\1"),
)
_PLAIN_WORD_PATTERN = re.compile(
  r"[\"'(]*[A-Za-z]+(['’-][A-Za-z]+)*[\"').,;:!?]*$"
)
_FUNCTION_WORD_LIST = (
  "a an and are as at be been but by can do does each for from has have if in"
  " into is it its may more not of on one only or other should so such than"
  " that the their then there these they this to used was we when where which"
  " will with you your"
)
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())


class Module(NamedTuple):
  """Describes one source file.

  Attributes:
    package: the name of the file's package.
    path: the path of the file.
    size: the size of the file in bytes.
  """

  package: str
  path: str
  size: int


def find_modules() -> list[Module]:
  """Finds the source files of Python's library and of installed `PACKAGES`.

  The files are always in the same order.

  Raises:
    UserError: there are no source files.
  """
  roots = []
  for package in PACKAGES:
    module_spec = importlib.util.find_spec(package)
    if module_spec and module_spec.submodule_search_locations:
      roots.append(
        (package, next(iter(module_spec.submodule_search_locations)))
      )
  roots.append((STANDARD_LIBRARY, sysconfig.get_path("stdlib")))
  modules = []
  for package, root in roots:
    for folder, subfolders, file_names in os.walk(root):
      subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
      for file_name in sorted(file_names):
        if file_name.endswith(".py"):
          path = pathlib.Path(folder, file_name)
          modules.append(Module(package, str(path), path.stat().st_size))
  if not modules:
    raise UserError(
      "docstrings: no Python source of"
      f" {', '.join((*PACKAGES, 'the standard library'))} is installed; run"
      " `pip install scipy keras`, or pass text files of your own."
    )
  return modules


def package_versions(modules: Sequence[Module]) -> dict[str, str]:
  """Returns package -> version for all packages of the modules."""
  packages = dict.fromkeys(module.package for module in modules)
  return {
    package: platform.python_version()
    if package == STANDARD_LIBRARY
    else importlib.metadata.version(package)
    for package in packages
  }


def read_modules(modules: Sequence[Module]) -> Iterator[tuple[Module, str]]:
  """Yields each module with its prose.

  A blank line separates two paragraphs of a module. A near-copy of an earlier
  paragraph is left out.
  """
  duplicate_finder = NearDuplicateFinder()
  for module in modules:
    paragraphs = [
      paragraph
      for docstring in module_docstrings(module.path)
      for paragraph in extract_prose(docstring)
      if duplicate_finder.add_if_new(paragraph)
    ]
    yield module, "\n\n".join(paragraphs)


class NearDuplicateFinder:
  """Finds paragraphs whose n-grams occurred in earlier paragraphs."""

  def __init__(self) -> None:
    """Begins without any paragraph."""
    # Words are numbered, because the hash of a tuple of integers is equal in
    # every process. The hash of a string differs from process to process.
    self._word_ids: dict[str, int] = {}
    self._seen_ngrams: set[int] = set()

  def add_if_new(self, paragraph: str) -> bool:
    """Adds a paragraph if few of its n-grams occurred before.

    Args:
      paragraph: a paragraph of prose.

    Returns:
      True if the paragraph was added; False if it is a near-copy.
    """
    words = re.findall(r"\w+", paragraph.lower())
    word_ids = [
      self._word_ids.setdefault(word, len(self._word_ids)) for word in words
    ]
    ngrams = {
      hash(gram)
      for gram in zip(*(word_ids[i:] for i in range(NGRAM_WORDS)), strict=False)
    }
    if len(ngrams & self._seen_ngrams) > MAX_SEEN_SHARE * len(ngrams):
      return False
    self._seen_ngrams |= ngrams
    return True


def module_docstrings(path: str) -> list[str]:
  """Returns the docstrings of a source file, from top to bottom.

  The list includes docstrings that numpy and scipy attach with a call
  `add_newdoc(name, docstring)`. The list is empty if the file cannot be parsed
  or has no triple quotes.
  """
  try:
    source = pathlib.Path(path).read_text(encoding="utf-8")
    if '"""' not in source and "'''" not in source:
      return []
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      tree = ast.parse(source)
  except (OSError, ValueError, SyntaxError):
    return []
  return list(_find_docstrings(tree.body))


def _find_docstrings(statements: Sequence[ast.stmt]) -> Iterator[str]:
  """Yields the docstrings in the body of a module, class, function or `if`."""
  for i, statement in enumerate(statements):
    if isinstance(statement, ast.Expr):
      expression = statement.value
      if isinstance(expression, ast.Call):
        if "add_newdoc" in ast.unparse(expression.func):
          for argument in ast.walk(expression):
            yield from _text_of_node(argument)
      elif i == 0:
        yield from _text_of_node(expression)
    elif isinstance(
      statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If
    ):
      yield from _find_docstrings(statement.body)


def _text_of_node(node: ast.AST) -> Iterator[str]:
  """Yields the text of a node if it is a string of several words."""
  if (
    isinstance(node, ast.Constant)
    and isinstance(node.value, str)
    and " " in node.value
  ):
    yield node.value


def extract_prose(docstring: str) -> list[str]:
  """Returns the paragraphs of prose in a docstring, each as one line.

  Code, doctests, tables, headings, references and the headers of parameter
  lists are dropped. Descriptions of parameters stay.
  """
  lines = inspect.cleandoc(docstring).split("\n")
  paragraphs = []
  for group in _group_lines(_without_code(lines)):
    text = " ".join(" ".join(group).split())
    for pattern, replacement in _MARKUP_RULES:
      text = pattern.sub(replacement, text)
    if _is_prose(text):
      paragraphs.append(text)
  return paragraphs


def _indent_of(line: str) -> int:
  """Returns the number of white-space characters that begin a line."""
  return len(line) - len(line.lstrip())


def _without_code(lines: Sequence[str]) -> Iterator[str]:
  """Yields the lines outside fenced blocks, doctests and literal blocks.

  Directives are dropped too, but the lines below the directive of a note, a
  warning or a changed version stay. The underline of a heading becomes a form
  feed.
  """
  in_fence = in_doctest = False
  # The indentation of the line that opened a literal block.
  block_indent: int | None = None
  for i, line in enumerate(lines):
    stripped_line = line.strip()
    if stripped_line.startswith(("```", "~~~")):
      in_fence = not in_fence
      stripped_line = ""
    if not stripped_line:
      in_doctest = False
      yield ""
      continue
    in_doctest = in_doctest or stripped_line.startswith((">>>", "$ "))
    if block_indent is not None and _indent_of(line) <= block_indent:
      block_indent = None
    if in_fence or in_doctest or block_indent is not None:
      continue
    if _REFERENCE_PATTERN.match(line) or _DIRECTIVE_PATTERN.match(line):
      has_prose = re.match(r"\s*\.\. (note|warning|versionchanged)::\s*", line)
      if not has_prose:
        block_indent = _indent_of(line)
      yield ""
      continue
    if _UNDERLINE_PATTERN.match(line):
      # Tell `_group_lines` to drop the line above, which is a heading.
      yield "\f"
      continue
    if stripped_line.endswith("::"):
      next_line = next(
        (later_line for later_line in lines[i + 1 :] if later_line.strip()), ""
      )
      if _indent_of(next_line) > _indent_of(line):
        block_indent = _indent_of(line)
      line = line[: line.rindex("::") + 1]
    yield line


def _group_lines(lines: Iterator[str]) -> Iterator[list[str]]:
  """Groups lines into paragraphs by blank lines, list entries and indents.

  Args:
    lines: the lines that `_without_code` yields.
  """
  group: list[str] = []
  indent = 0
  # True if the previous line begins a list entry. The current line then belongs
  # to that entry, even if it is indented more.
  follows_entry_start = False
  for line in lines:
    if line == "\f":
      group = group[:-1]
    if _SECTION_PATTERN.match(line):
      line = ""
    bullet_match = _BULLET_PATTERN.match(line)
    google_match = None if bullet_match else _GOOGLE_ENTRY_PATTERN.match(line)
    numpy_match = not google_match and _NUMPY_ENTRY_PATTERN.match(line)
    indent_changes = _indent_of(line) != indent and not follows_entry_start
    if (
      not line.strip()
      or bullet_match
      or google_match
      or numpy_match
      or (group and indent_changes)
    ):
      if group:
        yield group
      group = []
    follows_entry_start = bool(bullet_match or google_match)
    indent = _indent_of(line)
    if line.strip() and not numpy_match:
      entry_match = bullet_match or google_match
      group.append(line[entry_match.end() :] if entry_match else line)
  if group:
    yield group


def _is_prose(text: str) -> bool:
  """Returns True if a text looks like English sentences.

  The text must have `MIN_WORDS` words or more and begin with a letter. At least
  70% of its words must be plain (`_PLAIN_WORD_PATTERN`), and at least 15% must
  be function words.
  """
  words = text.split()
  if len(words) < MIN_WORDS or not re.match(r"[\"'(]?[A-Za-z]", text):
    return False
  num_plain_words = sum(bool(_PLAIN_WORD_PATTERN.match(word)) for word in words)
  num_function_words = sum(word.lower() in _FUNCTION_WORDS for word in words)
  return num_plain_words >= 0.7 * len(
    words
  ) and num_function_words >= 0.15 * len(words)
