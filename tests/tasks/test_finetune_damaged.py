"""Tests that a task folder is refused if it changed after `prepare-task`."""

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
  vocab_path, output = str(path / "vocab.txt"), str(path / "sst2")
  prepare_task.prepare(task, inputs, vocab_path, output, length=12)
  return output


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
  return make_folder(tmp_path_factory.mktemp("task"))


@pytest.fixture
def copy_of_folder(prepared_folder, tmp_path):
  return pathlib.Path(shutil.copytree(prepared_folder, tmp_path / "sst2"))


@pytest.fixture
def folder_without_digests(copy_of_folder):
  """Returns a task folder without digests, as earlier versions wrote it."""
  meta = json.loads((copy_of_folder / "meta.json").read_text())
  del meta["files"], meta["fingerprint"]
  (copy_of_folder / "meta.json").write_text(json.dumps(add_checksum(meta)))
  return str(copy_of_folder)


def overwrite_arrays(folder, **arrays):
  _, rows, _ = encoded_rows.load(folder, "train")
  path = pathlib.Path(folder, "train.npz")
  np.savez(path, **(encoded_rows.named_arrays(rows) | arrays))


def open_training_split(folder):
  return batches.open_task(batch_size=2, seed=0, path=folder, validation="")


def test_a_folder_without_digests_opens_with_a_note(
  folder_without_digests, capsys
):
  overwrite_arrays(folder_without_digests)
  folder_data = open_training_split(folder_without_digests)
  assert folder_data.task.labels == ("0", "1")
  assert (
    folder_data.folder.meta["fingerprint"]
    == folder_data.folder.meta[batches.ROWS_FINGERPRINT]
  )
  note = (
    "note: " + folder_without_digests + " was prepared by an earlier version"
  )
  assert capsys.readouterr().err.count(note) == 1


def test_one_flipped_bit_anywhere_is_noticed(prepared_folder, tmp_path):
  """Flips random bits of each file; the folder must then not open."""
  names = sorted(path.name for path in pathlib.Path(prepared_folder).iterdir())
  rng = random.Random(0)
  assert names == [
    *("meta.json", "tokenizer_config.json", "train.examples.jsonl"),
    *("train.npz", "validation.examples.jsonl", "validation.npz", "vocab.txt"),
  ]
  open_training_split(prepared_folder)
  for name in names:
    content = (pathlib.Path(prepared_folder) / name).read_bytes()
    for copy_number in range(12):
      damaged_copy = tmp_path / f"{name}-{copy_number}"
      shutil.copytree(prepared_folder, damaged_copy)
      changed_content, byte_index = (
        bytearray(content),
        rng.randrange(len(content)),
      )
      changed_content[byte_index] ^= 1 << rng.randrange(8)
      (damaged_copy / name).write_bytes(changed_content)
      with pytest.raises(ValueError, match=f"{damaged_copy}.* is damaged"):
        open_training_split(str(damaged_copy))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "vocab.txt"])
def test_a_changed_or_missing_tokenizer_file_is_refused(copy_of_folder, name):
  path, content = copy_of_folder / name, (copy_of_folder / name).read_text()
  message = rf"is damaged: {name} is not the file that `prepare-task` wrote"
  for new_content in (content.replace("true", "null"), content[::-1], None):
    path.unlink() if new_content is None else path.write_text(new_content)
    if new_content != content:
      with pytest.raises(ValueError, match=message):
        open_training_split(str(copy_of_folder))
  path.write_text(content)
  open_training_split(str(copy_of_folder))


def test_an_added_tokenizer_file_is_refused(copy_of_folder):
  (copy_of_folder / "tokenizer.json").write_text("{}")
  with pytest.raises(
    ValueError, match="tokenizer.json was added after `prepare-t"
  ):
    open_training_split(str(copy_of_folder))


def test_the_fingerprint_depends_on_labels_and_not_on_paths(
  prepared_folder, tmp_path
):
  meta = open_training_split(prepared_folder).folder.meta
  meta_of_same_input = open_training_split(make_folder(tmp_path)).folder.meta
  assert (
    meta["fingerprint"]
    == meta_of_same_input["fingerprint"]
    != meta[batches.ROWS_FINGERPRINT]
  )
  (tmp_path / "other").mkdir()
  meta_of_other_input = open_training_split(
    make_folder(tmp_path / "other", TEXT.replace("\t0", "\t1"))
  ).folder.meta
  assert meta["fingerprint"] != meta_of_other_input["fingerprint"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_npz_is_refused(folder_without_digests, content):
  pathlib.Path(folder_without_digests, "train.npz").write_bytes(content)
  with pytest.raises(ValueError, match=r"sst2: split train is damaged \("):
    open_training_split(folder_without_digests)


def test_a_file_with_one_array_is_refused(folder_without_digests):
  with pathlib.Path(folder_without_digests, "train.npz").open("wb") as file:
    np.save(file, np.arange(3))
  with pytest.raises(ValueError, match="sst2: split train is damaged"):
    open_training_split(folder_without_digests)


def test_a_label_that_no_class_has_is_refused(folder_without_digests):
  overwrite_arrays(folder_without_digests, labels=np.array([1, 7], np.int32))
  with pytest.raises(
    ValueError, match="train is damaged .*label 7 is not below 2"
  ):
    open_training_split(folder_without_digests)


def test_an_id_beyond_the_vocabulary_is_refused(folder_without_digests):
  _, rows, _ = encoded_rows.load(folder_without_digests, "train")
  overwrite_arrays(folder_without_digests, ids=np.full_like(rows.ids, 40000))
  with pytest.raises(ValueError, match="damaged .id 40000 is not below"):
    open_training_split(folder_without_digests)


@pytest.mark.parametrize("line", ["{}", "[]", "3"])
def test_examples_without_labels_are_refused(folder_without_digests, line):
  path = pathlib.Path(folder_without_digests, "train.examples.jsonl")
  files.write_text(path, f"{line}\n{line}\n")
  with pytest.raises(ValueError, match="damaged .line 1 of the examples"):
    open_training_split(folder_without_digests)
