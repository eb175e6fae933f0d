"""Runs the programs of docs/jax.md in a folder with tiny files.

Compiling models makes some programs slow. tests/models checks their results.
"""

import importlib.util
import pathlib
import re

import pytest
from prepared import random_documents, write_prepared

PAGE_PATH = pathlib.Path(__file__).parents[1] / "docs" / "jax.md"
PROGRAM_BY_TITLE = dict(
  re.findall(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```",
    PAGE_PATH.read_text(),
    re.DOTALL | re.MULTILINE,
  )
)
SLOW_TITLES = (
  "In flax.nnx",
  "Fine-tune on your own texts",
  "On a mesh with explicit axes",
  "vmap",
  "Forward-mode and second derivatives",
  "seqio",
)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "some", "text"]
PIECES += ["more", "words"]

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder with the files that the page names."""
  path = tmp_path_factory.mktemp("page")
  (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  for name in ("text", "data"):
    (path / name).mkdir()
  documents = ["Some text.\nMore words.\nMore text."] * 60
  (path / "text" / "a.txt").write_text("\n\n".join(documents))
  train_documents, heldout_documents = (
    random_documents(40, seed=0),
    random_documents(10, seed=1),
  )
  write_prepared(path / "data" / "mine", train_documents, heldout_documents)
  return path


def test_every_program_of_the_page_is_found():
  assert len(PROGRAM_BY_TITLE) == PAGE_PATH.read_text().count("```python") == 10
  assert PROGRAM_BY_TITLE.keys() > {*SLOW_TITLES}


@pytest.mark.parametrize(
  "title",
  [
    pytest.param(title, marks=pytest.mark.slow if title in SLOW_TITLES else ())
    for title in PROGRAM_BY_TITLE
  ],
)
def test_a_program_runs(title, folder, monkeypatch):
  program = PROGRAM_BY_TITLE[title]
  has_seqio = importlib.util.find_spec("seqio") is not None
  if "seqio" in program and not has_seqio:
    pytest.skip("the extra [data] is not there")
  monkeypatch.chdir(folder)
  try:
    exec(compile(program, f"{PAGE_PATH}: {title}", "exec"), {})
  finally:
    if "seqio" in program:
      import seqio

      # Otherwise a later test could not register a task of the same name.
      seqio.TaskRegistry.reset()
