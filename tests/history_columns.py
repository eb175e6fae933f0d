"""Reads the columns of `history` that docs/python.md explains."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "python.md"


def documented_columns():
  """Returns the names in the first column of the page's table."""
  section = PAGE.read_text().partition("## The history of a run")[2]
  section = section.partition("\n## ")[0]
  cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
  return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
