"""Tests files of features with unusual tokens, and on a full disk."""

import json
import resource

import numpy as np
import pytest

from bert_jax.use import feature_files, text_inputs
from bert_jax.use.features import TextVectors


def make_features(*tokens):
  vectors = np.arange(len(tokens) * 2, dtype=np.float32).reshape(-1, 2)
  return TextVectors("a\0", tokens, vectors)


def test_a_word_may_contain_nul(tmp_path):
  h5py = pytest.importorskip("h5py")
  features = [make_features("a\0b", "c\0"), make_features()]
  tokens_without_nul = ["a\ufffdb", "c\ufffd"]
  paths = [str(tmp_path / f"a.{end}") for end in ("jsonl", "npz", "h5")]
  for path in paths:
    assert feature_files.write(path, features) == 2
  first_line, _ = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
  assert json.loads(first_line)["tokens"] == ["a\0b", "c\0"]
  with np.load(paths[1]) as arrays:
    assert arrays["tokens"].tolist() == tokens_without_nul
    assert arrays["ids"].tolist() == ["a\ufffd"] * 2
  with h5py.File(paths[2]) as h5_file:
    assert h5_file["tokens"].asstr()[:].tolist() == tokens_without_nul
    assert h5_file["starts"][:].tolist() == [0, 2, 2]


def test_one_long_word_does_not_fill_the_memory(tmp_path, monkeypatch):
  pytest.importorskip("h5py")
  monkeypatch.setattr(feature_files, "_MAX_STRING_BYTES", 4 * 1000 * 3 - 1)
  features, path = [make_features("x" * 1000, "a", "b")], tmp_path / "a.npz"
  message = (
    "tokens: 3 strings are too large for an .npz, because each takes as much"
    " space as the longest, of 1,000"
  )
  with pytest.raises(ValueError, match=message):
    feature_files.write(str(path), features)
  assert not list(tmp_path.iterdir())
  # In an array, each of these 1001 tokens would take half a gigabyte.
  monkeypatch.undo()
  features = [make_features("x" * (1 << 27)), make_features(*["a"] * 1000)]
  assert feature_files.write(str(tmp_path / "a.h5"), features) == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.json"])
def test_four_extensions_are_read_as_json_lines(tmp_path, name):
  path = tmp_path / name
  path.write_text('{"text": "the cat", "id": "x"}\n')
  (text,) = text_inputs.read_texts(str(path))
  assert (text.id, text.text) == ("x", "the cat")


@pytest.mark.parametrize("extension", ["h5", "npz", "jsonl"])
def test_a_full_disk_raises_and_leaves_no_file(tmp_path, extension):
  """Writes features with a limit for the size of files.

  Each write must raise an error that names the file, and leave no file. Without
  `_ErrorKeepingFile`, HDF5 would end with a segmentation fault.
  """
  pytest.importorskip("h5py")
  vectors = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
  features = [TextVectors(str(i), ("a", "b"), vectors) for i in range(600)]
  path = tmp_path / f"a.{extension}"
  assert feature_files.write(str(path), features) == 600
  size = path.stat().st_size
  path.unlink()
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  for max_size in (100, 5000, size // 2, size - 1):
    try:
      resource.setrlimit(resource.RLIMIT_FSIZE, (max_size, limits[1]))
      with pytest.raises(OSError, match="too large") as error:
        feature_files.write(str(path), features)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_a_link_to_the_input_is_refused_as_output(tmp_path):
  source, link = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.touch()
  link.symlink_to(source)
  with pytest.raises(ValueError, match="out.jsonl is the input"):
    text_inputs.check_not_same_file(str(source), str(link))
  text_inputs.check_not_same_file(str(source), str(tmp_path / "other.jsonl"))
