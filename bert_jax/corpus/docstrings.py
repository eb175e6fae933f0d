"""Real English on any machine: the prose in installed packages' docstrings.

The source files are parsed, never imported. A document is the prose of one
module. Documentation repeats itself (copied arguments, versions of an API
side by side), so a paragraph goes when too many of its word 5-grams were seen
in kept paragraphs: without that, 30% of the 8-grams of held-out modules occur
in the others.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_jax.messages import UserError

PACKAGES = ("tensorflow", "scipy", "numpy", "jax", "keras")
STANDARD_LIBRARY = "python"
MIN_WORDS = 12
# The largest share of 5-grams that a kept paragraph may have in common with
# what was kept before.
MAX_SEEN = 0.4
NGRAM = 5

# Little prose, or (TensorFlow's `_api`) nothing but imports.
_SKIPPED_FOLDERS = {"_api", "site-packages", "test", "testing", "tests"}

_DIRECTIVE = re.compile(r"\s*\.\. [\w-]+::")
_REFERENCE = re.compile(r"\s*\.\. (\[|_)")
_UNDERLINE = re.compile(r"\s*([-=~^*#+`])\1{2,}\s*$")
_SECTION = re.compile(r"\s*[A-Z]\w+( \w+)?:$")
_BULLET = re.compile(r"\s*([-*+•]|\(?\d+[.)])\s+(?=\S)")
# numpydoc's `x, y : array_like`; the description is in the lines below.
_NUMPY_ITEM = re.compile(r"\s*[\w*`.,\[\]{}\\ ]{1,60} : \S")
# Google's `name (type): description`.
_GOOGLE_ITEM = re.compile(r"\s*[*`]*[\w.]+`?( \([^)]*\))?: +(?=\S)")
_MARKUP = (
  (re.compile(r":[\w:.+-]+:`~?([^`<]*)( <[^`]*>)?`"), r"\1"),
  (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
  (re.compile(r"`([^`<]*) <[^`]*>`_+"), r"\1"),
  (re.compile(r"\s*\[[\w]+\]_"), ""),
  (re.compile(r"`+"), ""),
  (re.compile(r"\*\*?(\w[^*\s]*)\*\*?"), r"\1"),
)
_PLAIN_WORD = re.compile(r"[\"'(]*[A-Za-z]+(['’-][A-Za-z]+)*[\"').,;:!?]*$")
_FUNCTION_WORDS = frozenset(
  "a an and are as at be been but by can do does each for from has have if in"
  " into is it its may more not of on one only or other should so such than"
  " that the their then there these they this to used was we when where which"
  " will with you your".split()
)


class Module(NamedTuple):
  """One source file; `size` in bytes."""

  package: str
  path: str
  size: int


def find_modules() -> list[Module]:
  """Finds the source files in a fixed order, packages that are missing apart.

  Raises:
    UserError: no source file of any package was found.
  """
  roots = []
  for package in PACKAGES:
    spec = importlib.util.find_spec(package)
    if spec and spec.submodule_search_locations:
      roots.append((package, list(spec.submodule_search_locations)[0]))
  roots.append((STANDARD_LIBRARY, sysconfig.get_path("stdlib")))
  modules = []
  for package, root in roots:
    for folder, folders, files in os.walk(root):
      folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
      for file in sorted(files):
        if file.endswith(".py"):
          path = os.path.join(folder, file)
          modules.append(Module(package, path, os.path.getsize(path)))
  if not modules:
    raise UserError(
      "docstrings: no Python source of"
      f" {', '.join((*PACKAGES, 'the standard library'))} is installed; run"
      " `pip install scipy keras`, or name text files."
    )
  return modules


def versions(modules: Sequence[Module]) -> dict[str, str]:
  """Returns the version of every package that the modules belong to."""
  names = dict.fromkeys(module.package for module in modules)
  return {
    name: platform.python_version()
    if name == STANDARD_LIBRARY
    else importlib.metadata.version(name)
    for name in names
  }


def read_modules(modules: Sequence[Module]) -> Iterator[tuple[Module, str]]:
  """Yields each module's paragraphs, blank lines between, near-copies gone."""
  filter_ = NearDuplicates()
  for module in modules:
    paragraphs = []
    for docstring in module_docstrings(module.path):
      for paragraph in prose(docstring):
        if filter_.is_new(paragraph):
          paragraphs.append(paragraph)
    yield module, "\n\n".join(paragraphs)


class NearDuplicates:
  """Says which paragraphs are new, in the order they come."""

  def __init__(self):
    # Tuples of integers hash alike in every process; strings do not.
    self._ids: dict[str, int] = {}
    self._seen: set[int] = set()

  def is_new(self, paragraph: str) -> bool:
    """Notes a paragraph's 5-grams unless too many of them are known."""
    words = re.findall(r"\w+", paragraph.lower())
    ids = [self._ids.setdefault(word, len(self._ids)) for word in words]
    grams = {
      hash(gram) for gram in zip(*(ids[i:] for i in range(NGRAM)), strict=False)
    }
    if len(grams & self._seen) > MAX_SEEN * len(grams):
      return False
    self._seen |= grams
    return True


def module_docstrings(path: str) -> list[str]:
  """Returns the docstrings of a source file in the order they stand in.

  numpy and scipy attach some with a call `add_newdoc(name, docstring)`; those
  count too. A file that cannot be parsed, or has no triple quotes, has none.
  """
  try:
    with open(path, encoding="utf-8") as f:
      source = f.read()
    if '"""' not in source and "'''" not in source:
      return []
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      tree = ast.parse(source)
  except (OSError, ValueError, SyntaxError):
    return []
  return list(_docstrings(tree))


def _docstrings(node: ast.AST) -> Iterator[str]:
  for child in node.body:
    value = getattr(child, "value", None)
    if isinstance(child, ast.Expr) and isinstance(value, ast.Call):
      if "add_newdoc" in ast.unparse(value.func):
        for argument in ast.walk(value):
          yield from _multiline(argument)
    elif isinstance(child, ast.Expr) and child is node.body[0]:
      yield from _multiline(value)
    elif isinstance(
      child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If
    ):
      yield from _docstrings(child)


def _multiline(node: ast.AST) -> Iterator[str]:
  if isinstance(node, ast.Constant) and isinstance(node.value, str):
    if " " in node.value:
      yield node.value


def prose(docstring: str) -> list[str]:
  """Returns the paragraphs of prose of a docstring, a line each.

  Code, doctests, tables, headings, references and the headers of parameter
  lists go; descriptions of parameters stay.
  """
  lines = inspect.cleandoc(docstring).split("\n")
  paragraphs = []
  for group in _groups(_without_code(lines)):
    text = " ".join(" ".join(group).split())
    for pattern, replacement in _MARKUP:
      text = pattern.sub(replacement, text)
    if _is_prose(text):
      paragraphs.append(text)
  return paragraphs


def _indent(line: str) -> int:
  return len(line) - len(line.lstrip())


def _without_code(lines: Sequence[str]) -> Iterator[str]:
  """Drops fenced blocks, doctests, directives and literal blocks."""
  fenced = doctest = False
  block = None  # Indentation of the line that opened a literal block.
  for i, line in enumerate(lines):
    bare = line.strip()
    if bare.startswith(("```", "~~~")):
      fenced = not fenced
      bare = ""
    if not bare:
      doctest = False
      yield ""
      continue
    doctest = doctest or bare.startswith((">>>", "$ "))
    if block is not None and _indent(line) <= block:
      block = None
    if fenced or doctest or block is not None:
      continue
    if _REFERENCE.match(line) or _DIRECTIVE.match(line):
      keeps = re.match(r"\s*\.\. (note|warning|versionchanged)::\s*", line)
      if not keeps:
        block = _indent(line)
      yield ""
      continue
    if _UNDERLINE.match(line):
      yield "\f"  # The line above is a heading.
      continue
    if bare.endswith("::"):
      following = next((x for x in lines[i + 1 :] if x.strip()), "")
      if _indent(following) > _indent(line):
        block = _indent(line)
      line = line[: line.rindex("::") + 1]
    yield line


def _groups(lines: Iterator[str]) -> Iterator[list[str]]:
  """Groups lines to paragraphs by blank lines, items and indentation."""
  group: list[str] = []
  indent = 0
  hanging = False  # The next line may be indented more: the same item.
  for line in lines:
    if line == "\f":
      group = group[:-1]
    if _SECTION.match(line):
      line = ""
    bullet = _BULLET.match(line)
    google = None if bullet else _GOOGLE_ITEM.match(line)
    header = not google and _NUMPY_ITEM.match(line)
    moved = _indent(line) != indent and not hanging
    if not line.strip() or bullet or google or header or (group and moved):
      if group:
        yield group
      group = []
    hanging = bool(bullet or google)
    indent = _indent(line)
    if line.strip() and not header:
      item = bullet or google
      group.append(line[item.end() :] if item else line)
  if group:
    yield group


def _is_prose(text: str) -> bool:
  words = text.split()
  if len(words) < MIN_WORDS or not re.match(r"[\"'(]?[A-Za-z]", text):
    return False
  plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
  common = sum(word.lower() in _FUNCTION_WORDS for word in words)
  return plain >= 0.7 * len(words) and common >= 0.15 * len(words)
