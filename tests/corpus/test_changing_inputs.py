"""Tests that nothing is written if an input changes while it is read."""

import os
import pathlib

import pytest
from text_files import names_in

from bert_jax import files
from bert_jax.corpus import prepare, sources, train_vocab
from bert_jax.corpus.filters import Filters
from bert_jax.tasks import prepare_task, task_inputs
from bert_jax.tasks.files import tables
from bert_jax.text import train_vocabulary

DOCUMENT = "some words of one text, and more words\n\n"
CHANGED_MESSAGE = r"a\.(txt|tsv|jsonl) was changed while it was read"


def append_text(path):
  with pathlib.Path(path).open("a") as file:
    file.write("more\n")


def overwrite_half(path):
  """Overwrites the first half of the file. The size of the file stays."""
  size = pathlib.Path(path).stat().st_size
  with pathlib.Path(path).open("r+") as file:
    file.write("x" * (size // 2))


def replace_file(path):
  """Replaces the file by a changed copy with equal size and time."""
  old_path, new_path = pathlib.Path(path), pathlib.Path(f"{path}.new")
  stat = old_path.stat()
  new_path.write_bytes(old_path.read_bytes().replace(b"words", b"wordy"))
  os.utime(new_path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  new_path.replace(old_path)


def write_half_character(path):
  """Replaces the content by the first of the two bytes of a character."""
  pathlib.Path(path).write_bytes("é".encode()[:1])


@pytest.fixture
def text_path(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text(DOCUMENT * 40)
  (tmp_path / "vocab.txt").write_text(
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsome\nwords\nof\n"
  )
  return path


def change_while_reading(monkeypatch, change, reading_number=1):
  """Changes a file while it is read.

  Args:
    monkeypatch: pytest's fixture.
    change: a function of a path, which changes the file.
    reading_number: the number of the reading, from 1, in which the file is
      changed, after its first document.
  """
  original_read_file, paths_read = sources.read_file, []

  def read(path, *arguments):
    paths_read.append(path)
    for i, record in enumerate(original_read_file(path, *arguments)):
      yield record
      if i == 0 and len(paths_read) == reading_number:
        change(path)

  monkeypatch.setattr(sources, "read_file", read)


@pytest.mark.parametrize("change", [append_text, overwrite_half, replace_file])
@pytest.mark.parametrize("reading_number", [1, 2])
def test_prepare_refuses_text_that_changes(
  text_path, tmp_path, monkeypatch, change, reading_number
):
  """The file changes in the first pass, for filters, or in the second one."""
  output = tmp_path / "prepared"
  arguments = (str(text_path), str(tmp_path / "vocab.txt"), str(output))
  options = dict(processes=1, filters=Filters(min_words=1), heldout=0.0)
  with monkeypatch.context() as patch:
    change_while_reading(patch, change, reading_number)
    with pytest.raises(files.ChangedInput, match=CHANGED_MESSAGE):
      prepare.prepare(*arguments, **options)
  assert not output.exists() and not (tmp_path / "prepared.partial").exists()
  assert prepare.prepare(*arguments, **options)["splits"]["train"]["tokens"]


def test_prepare_names_a_file_that_was_deleted(
  text_path, tmp_path, monkeypatch
):
  change_while_reading(monkeypatch, lambda path: pathlib.Path(path).unlink())
  with pytest.raises(files.ChangedInput, match="was deleted while it was read"):
    prepare.prepare(
      *(
        str(text_path),
        str(tmp_path / "vocab.txt"),
        str(tmp_path / "prepared"),
      ),
      **dict(processes=1, heldout=0.0),
    )


@pytest.mark.parametrize("algorithm", train_vocabulary.ALGORITHMS)
def test_train_vocab_refuses_text_that_changes(
  text_path, tmp_path, monkeypatch, algorithm
):
  if algorithm == "unigram":
    pytest.importorskip("sentencepiece", reason="the extra [data]")
  change_while_reading(monkeypatch, append_text)
  output = tmp_path / ("v.model" if algorithm == "unigram" else "v")
  names_before = names_in(tmp_path)
  with pytest.raises(files.ChangedInput, match=CHANGED_MESSAGE):
    train_vocab.train_vocab(
      str(text_path), size=100, output=str(output), algorithm=algorithm
    )
  assert names_in(tmp_path) == names_before


@pytest.mark.parametrize(
  "change", [append_text, overwrite_half, replace_file, write_half_character]
)
@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_prepare_task_refuses_rows_that_change(
  text_path, tmp_path, monkeypatch, change, name
):
  path = tmp_path / name
  two_row_template = '{"text": "some words", "label": %d}\n' * 2
  header = "" if name == "a.jsonl" else "text\tlabel\n"
  two_row_template = (
    two_row_template if name == "a.jsonl" else "some words\t%d\n" * 2
  )
  path.write_text(header + two_row_template % (0, 1) * 9)
  task = task_inputs.find_task("mine", columns="text=text,label=label")
  inputs = task_inputs.parse_inputs(task, [f"train={path}"])
  output = tmp_path / "task"
  arguments = task, inputs, str(tmp_path / "vocab.txt"), str(output), 16
  with monkeypatch.context() as patch:
    function_name = "jsonl_records" if name == "a.jsonl" else "table_records"
    read = getattr(tables, function_name)

    def change_first(path, *arguments):
      records = read(path, *arguments)
      yield next(records)
      change(path)
      yield from records

    patch.setattr(tables, function_name, change_first)
    with pytest.raises(files.ChangedInput, match=CHANGED_MESSAGE):
      prepare_task.prepare(*arguments)
  assert not output.exists()
  path.write_text(header + two_row_template % (0, 1) * 9)
  assert prepare_task.prepare(*arguments)["length"] == 16
