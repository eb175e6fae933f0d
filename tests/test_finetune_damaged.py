"""Files of a task's folder that another hand changed are refused by name."""

import os
import pathlib

import finetune_files as files
import numpy as np
import pytest

from bert_jax.finetune import data, preparing, reading, rows


@pytest.fixture
def folder(tmp_path):
  files.wordpiece(tmp_path)
  text = "sentence\tlabel\nthe good cat \t1\nbad mat\t0\n"
  train = files.write(tmp_path / "train.tsv", text)
  known = reading.find("sst2")
  given = reading.parse_inputs(known, [f"train={train}"])
  vocab, output = str(tmp_path / "vocab.txt"), str(tmp_path / "sst2")
  preparing.prepare(known, given, vocab, output, length=12)
  return output


def change(folder, **arrays):
  _, made, _ = rows.load(folder, "train")
  path = os.path.join(folder, "train.npz")
  np.savez(path, **(made._asdict() | arrays))


def load(folder):
  return data.open_data(2, 0, folder, validation="")


def test_whole(folder):
  change(folder)
  assert load(folder).task.labels == ("0", "1")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_another_file(folder, content):
  with open(os.path.join(folder, "train.npz"), "wb") as f:
    f.write(content)
  with pytest.raises(ValueError, match=r"sst2: split train is damaged \("):
    load(folder)


def test_a_bare_array(folder):
  with open(os.path.join(folder, "train.npz"), "wb") as f:
    np.save(f, np.arange(3))
  with pytest.raises(ValueError, match="sst2: split train is damaged"):
    load(folder)


def test_a_label_that_no_class_has(folder):
  change(folder, labels=np.array([1, 7], np.int32))
  with pytest.raises(ValueError, match="train is damaged .*label 7, of 2"):
    load(folder)


def test_a_piece_that_the_vocabulary_has_not(folder):
  _, made, _ = rows.load(folder, "train")
  change(folder, ids=np.full_like(made.ids, 40000))
  with pytest.raises(ValueError, match="damaged .piece 40000 of"):
    load(folder)


@pytest.mark.parametrize("line", ["{}", "[]", "3"])
def test_examples_without_labels(folder, line):
  path = pathlib.Path(folder, "train.examples.jsonl")
  files.write(path, f"{line}\n{line}\n")
  with pytest.raises(ValueError, match="damaged .line 1 of the examples"):
    load(folder)
