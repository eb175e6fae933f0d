"""Tests that the commands in README and docs exist, and run."""

import ast
import re
import shlex

import docs_commands
import pytest

from bert_jax.cli.main import parser_of

# The commands run in child processes, which inherit the options that these
# fixtures set.
pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
PAGE_TEXT = """
Text with `bert_jax evaluate --model
A` and `a value`.

```
bert_jax prepare --input 'text/*.txt' \\
  --output data/mine    # makes a folder
pip install -e '.[data]'
train: 3 tokens
```

```python
print(1)
```
"""


def test_all_commands_of_the_page_text_are_found():
  commands = list(docs_commands._commands_of_page("README.md", PAGE_TEXT))
  assert [(command.text, command.is_program) for command in commands] == [
    ("bert_jax evaluate --model A", False),
    (
      "bert_jax prepare --input 'text/*.txt' --output data/mine",
      False,
    ),
    ("pip install -e '.[data]'", False),
    ("print(1)\n", True),
  ]


def test_pages_have_many_different_commands():
  commands = docs_commands.all_commands()
  texts = [command.text for command in commands]
  assert len(commands) > 50 and len(texts) == len(set(texts))
  pages = {command.page for command in commands}
  assert {"README.md", "docs/finetune.md", "docs/corpus.md"} <= pages
  assert any("benchmarks/data.py" in text for text in texts)


@pytest.mark.parametrize(
  "text, error",
  [
    ("pip install 'bert_jax[data,tpu]'", None),
    ("pip install 'bert_jax[dta]'", "no extra dta"),
    ("make quickstart", None),
    ("make quickstarts", "no target quickstarts"),
    ("make docs-commands", None),
  ],
)
def test_wrong_extras_and_targets_are_found(text, error):
  message = docs_commands.check_install(
    docs_commands.Command("README.md", text)
  )
  assert (error is None) == (message is None) and (error or "") in (
    message or ""
  )


def test_all_extras_and_targets_exist():
  for command in docs_commands.all_commands():
    if command.text.startswith(("pip", "make")):
      assert docs_commands.check_install(command) is None, command


def parse_flags(text):
  """Parses the flags of bert_jax; variables such as A=1 may come before it."""
  _, verb, *words = shlex.split(text[text.index("bert_jax ") :])
  parser_of(verb).parse(
    [docs_commands.REPLACEMENTS.get(word, word) for word in words]
  )


def test_commands_on_pages_parse():
  texts = [
    command.text
    for command in docs_commands.all_commands()
    if not command.is_program
  ]
  texts = [text for text in texts if re.match(r"(\w+=\S+ )*bert_jax ", text)]
  for text in texts:
    parse_flags(text)
    # The small version needs the config that the command names.
    words = shlex.split(text[text.index("bert_jax ") :])
    words = [docs_commands._replace_placeholder(word) for word in words]
    docs_commands.make_small(["python", "-m", *words])
  assert len(texts) > 30


def test_commands_in_docstrings_of_configs_parse():
  num_commands = 0
  for path in sorted((docs_commands.ROOT / "configs").glob("*.py")):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    # In some docstrings a backslash at a line's end continues the command.
    for line in docstring.replace("\\\n", " ").split("\n"):
      if line.strip().startswith("bert_jax "):
        parse_flags(line.strip())
        num_commands += 1
  assert num_commands > 20


def test_the_glossary_is_short_and_names_files_that_exist():
  text = (docs_commands.ROOT / "docs" / "glossary.md").read_text()
  terms_and_paths = re.findall(r"^\| (.+?) \| .+ \| `(.+?)` \|$", text, re.M)
  assert 20 < len(terms_and_paths) <= 40
  terms = [term for term, _ in terms_and_paths]
  assert terms == sorted(set(terms))
  for term, path in terms_and_paths:
    assert (docs_commands.ROOT / "bert_jax" / path).exists(), term


@pytest.mark.slow
def test_every_command_runs(tmp_path):
  failures = [
    outcome for outcome in docs_commands.run_all(tmp_path) if outcome.error
  ]
  assert not failures, "\n\n".join(
    f"{outcome.command}\n{outcome.error}" for outcome in failures
  )
