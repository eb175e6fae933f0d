"""Tests how the input `docstrings` takes prose from docstrings of modules."""

import re
import subprocess
import sys

from bert_jax.corpus import docstrings, sources

NUMPY_STYLE_DOCSTRING = '''"""
    Compute the thing that
    everybody wants to have, and return it to the caller of this function.

    Parameters
    ----------
    first : array_like, optional
        The first argument is the one that comes before the second and the
        third, as :func:`numpy.add` or ``other`` has it [1]_.
    axis : int
        Short.

    Examples
    --------
    >>> a = compute(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    a line of output that has as many words as a paragraph of prose needs

    The code of this example is not part of what we want to have here::

        for the in a and of or to in is it that has been for you:
          print(the)

    .. math::

        the sum of all that is in the set and of what is not in the set

    ====== ====== a b c d e f g h i j k l m n o p
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18

    .. [1] The author of the book, "The title of the book that he wrote", in
       the city where it was printed.
    """
'''

GOOGLE_STYLE_DOCSTRING = '''"""Short summary.

  Args:
    x: A tensor of the shape that the other tensor has, or one that can be
      broadcast to it by the usual rules.
    name (str): Optional.

  Returns:
    The value of the function at the point that was given, and nothing else.

  ```python
  the code in a fence is not for us and it is left out of what we have here
  ```
  * The first item of the list is long enough to be a paragraph of its own.
  * The second item of the list is not the same as the first one of the list.
  """
'''


def strip_quotes(literal: str) -> str:
  return literal.strip().strip('"')


def test_prose_of_numpy_docstrings():
  assert docstrings.extract_prose(strip_quotes(NUMPY_STYLE_DOCSTRING)) == [
    "Compute the thing that everybody wants to have, and return it to the"
    " caller of this function.",
    "The first argument is the one that comes before the second and the third,"
    " as numpy.add or other has it.",
    "The code of this example is not part of what we want to have here:",
  ]


def test_prose_of_google_docstrings():
  assert docstrings.extract_prose(strip_quotes(GOOGLE_STYLE_DOCSTRING)) == [
    "A tensor of the shape that the other tensor has, or one that can be"
    " broadcast to it by the usual rules.",
    "The value of the function at the point that was given, and nothing else.",
    "The first item of the list is long enough to be a paragraph of its own.",
    "The second item of the list is not the same as the first one of the list.",
  ]


def test_docstrings_come_in_the_order_of_the_module(tmp_path):
  path = tmp_path / "module.py"
  path.write_text(
    '"""The module."""\n'
    'text = """no docstring"""\n'
    'class A:\n  """The class."""\n'
    '  def f(self):\n    """The method."""\n    """not one"""\n'
    'if True:\n  async def g():\n    """The coroutine."""\n'
    'add_newdoc("m", "f", """The added one.""")\n'
  )
  assert docstrings.module_docstrings(str(path)) == [
    "The module.",
    "The class.",
    "The method.",
    "The coroutine.",
    "The added one.",
  ]
  path.write_text('"""Broken."""\ndef')
  assert docstrings.module_docstrings(str(path)) == []


def test_near_copies_are_dropped():
  finder = docstrings.NearDuplicateFinder()
  words = [f"w{i}" for i in range(40)]
  assert finder.add_if_new(" ".join(words))
  assert not finder.add_if_new(" ".join(words))
  assert not finder.add_if_new(" ".join(["W0,", *words[1:39], "other"]))
  new_words = [*words[:10], *(f"v{i}" for i in range(40))]
  assert finder.add_if_new(" ".join(new_words))


def test_the_standard_library_gives_unique_paragraphs(monkeypatch):
  monkeypatch.setattr(docstrings, "PACKAGES", ("no_such_package_here",))
  modules = docstrings.find_modules()[:150]
  assert modules == sorted(modules, key=lambda m: m.path.split("/")[:-1])
  texts = [text for _, text in docstrings.read_modules(modules)]
  assert texts == [text for _, text in docstrings.read_modules(modules)]
  paragraphs = [
    paragraph for text in texts if text for paragraph in text.split("\n\n")
  ]
  assert len(paragraphs) > 500
  assert len(set(paragraphs)) == len(paragraphs)
  assert (
    min(len(paragraph.split()) for paragraph in paragraphs)
    >= docstrings.MIN_WORDS
  )
  assert not any(
    re.search(r">>>|\n|  |`", paragraph) for paragraph in paragraphs
  )


def test_the_input_docstrings_gives_documents(monkeypatch):
  monkeypatch.setattr(docstrings, "PACKAGES", ())
  modules = docstrings.find_modules()[:60]
  monkeypatch.setattr(docstrings, "find_modules", lambda: modules)
  (source,) = sources.find_sources("docstrings")
  assert source.version == {"python": sys.version.split()[0]}
  documents = list(sources.read_documents("docstrings"))
  assert len(documents) > 10 and all(documents)


def test_packages_are_not_imported():
  code = (
    "import sys\n"
    "from bert_jax.corpus import docstrings\n"
    "import bert_jax.cli.prepare, bert_jax.cli.vocab\n"
    "docstrings.package_versions(docstrings.find_modules())\n"
    "heavy = {'tensorflow', 'jax', 'keras', 'scipy', 'seqio'}\n"
    "bad = heavy & set(sys.modules)\n"
    "sys.exit(str(bad) if bad else 0)\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
