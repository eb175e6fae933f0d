"""A task folder that another program has changed is refused."""

import json
import pathlib
import random
import shutil

import finetune_files as files
import numpy as np
import pytest

from bert_jax.files import add_checksum
from bert_jax.tasks import batches, encoded_rows, prepare_task, task_inputs

TEXT = "sentence\tlabel\nthe good cat \t1\nbad mat\t0\n"


def make_folder(path, text=TEXT):
  """Returns a task folder with two splits, made by `prepare`."""
  files.write_wordpiece(path)
  paths = {
    name: files.write_text(path / name, text) for name in ("a.tsv", "b.tsv")
  }
  task = task_inputs.find_task("sst2")
  splits = [f"train={paths['a.tsv']}", f"validation={paths['b.tsv']}"]
  inputs = task_inputs.parse_inputs(task, splits)
  vocab, output = str(path / "vocab.txt"), str(path / "sst2")
  prepare_task.prepare(task, inputs, vocab, output, length=12)
  return output


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  return make_folder(tmp_path_factory.mktemp("task"))


@pytest.fixture
def copy(prepared, tmp_path):
  return pathlib.Path(shutil.copytree(prepared, tmp_path / "sst2"))


@pytest.fixture
def folder(copy):
  """Returns a task folder without digests, as earlier versions wrote it."""
  meta = json.loads((copy / "meta.json").read_text())
  del meta["files"], meta["fingerprint"]
  (copy / "meta.json").write_text(json.dumps(add_checksum(meta)))
  return str(copy)


def change(folder, **arrays):
  _, rows, _ = encoded_rows.load(folder, "train")
  path = pathlib.Path(folder, "train.npz")
  np.savez(path, **(encoded_rows.named_arrays(rows) | arrays))


def load(folder):
  return batches.open_task(2, 0, folder, validation="")


def test_a_folder_without_digests_is_opened_and_said(folder, capsys):
  change(folder)
  folder_data = load(folder)
  assert folder_data.task.labels == ("0", "1")
  assert (
    folder_data.folder.meta["fingerprint"]
    == folder_data.folder.meta[batches.ROWS_FINGERPRINT]
  )
  note = "note: " + folder + " was prepared by an earlier version"
  assert capsys.readouterr().err.count(note) == 1


def test_one_flipped_bit_anywhere_is_noticed(prepared, tmp_path):
  """Flips random bits of each file: the folder must not open."""
  names = sorted(path.name for path in pathlib.Path(prepared).iterdir())
  rng = random.Random(0)
  assert names == [
    *("meta.json", "tokenizer_config.json", "train.examples.jsonl"),
    *("train.npz", "validation.examples.jsonl", "validation.npz", "vocab.txt"),
  ]
  load(prepared)
  for name in names:
    content = (pathlib.Path(prepared) / name).read_bytes()
    for number in range(12):
      damaged_copy = tmp_path / f"{name}-{number}"
      shutil.copytree(prepared, damaged_copy)
      changed_content, index = bytearray(content), rng.randrange(len(content))
      changed_content[index] ^= 1 << rng.randrange(8)
      (damaged_copy / name).write_bytes(changed_content)
      with pytest.raises(ValueError, match=f"{damaged_copy}.* is damaged"):
        load(str(damaged_copy))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "vocab.txt"])
def test_a_file_of_the_tokenizer_removed_edited_or_of_another(copy, name):
  path, content = copy / name, (copy / name).read_text()
  message = rf"is damaged: {name} is not the file that `prepare` wrote"
  for new_content in (content.replace("true", "null"), content[::-1], None):
    path.unlink() if new_content is None else path.write_text(new_content)
    if new_content != content:
      with pytest.raises(ValueError, match=message):
        load(str(copy))
  path.write_text(content)
  load(str(copy))


def test_a_file_that_would_be_read_instead_of_the_tokenizer(copy):
  (copy / "tokenizer.json").write_text("{}")
  with pytest.raises(ValueError, match="tokenizer.json was added after"):
    load(str(copy))


def test_the_fingerprint_is_that_of_all_splits(prepared, tmp_path):
  """The fingerprint depends on the labels, but not on the paths of inputs."""
  meta = load(prepared).folder.meta
  meta_of_same_input = load(make_folder(tmp_path)).folder.meta
  assert (
    meta["fingerprint"]
    == meta_of_same_input["fingerprint"]
    != meta[batches.ROWS_FINGERPRINT]
  )
  (tmp_path / "other").mkdir()
  meta_of_other_input = load(
    make_folder(tmp_path / "other", TEXT.replace("\t0", "\t1"))
  ).folder.meta
  assert meta["fingerprint"] != meta_of_other_input["fingerprint"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_another_file(folder, content):
  pathlib.Path(folder, "train.npz").write_bytes(content)
  with pytest.raises(ValueError, match=r"sst2: split train is damaged \("):
    load(folder)


def test_a_bare_array(folder):
  with pathlib.Path(folder, "train.npz").open("wb") as f:
    np.save(f, np.arange(3))
  with pytest.raises(ValueError, match="sst2: split train is damaged"):
    load(folder)


def test_a_label_that_no_class_has(folder):
  change(folder, labels=np.array([1, 7], np.int32))
  with pytest.raises(
    ValueError, match="train is damaged .*label 7 is not below 2"
  ):
    load(folder)


def test_a_piece_that_the_vocabulary_has_not(folder):
  _, rows, _ = encoded_rows.load(folder, "train")
  change(folder, ids=np.full_like(rows.ids, 40000))
  with pytest.raises(ValueError, match="damaged .id 40000 is not below"):
    load(folder)


@pytest.mark.parametrize("line", ["{}", "[]", "3"])
def test_examples_without_labels(folder, line):
  path = pathlib.Path(folder, "train.examples.jsonl")
  files.write_text(path, f"{line}\n{line}\n")
  with pytest.raises(ValueError, match="damaged .line 1 of the examples"):
    load(folder)
