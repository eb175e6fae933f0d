"""Tests that a damaged prepared folder raises an error when it is opened."""

import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest

from bert_jax import files
from bert_jax.corpus import prepare, reader, writer
from bert_jax.text.vocabulary import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def prepare_text(tmp_path_factory):
  """Returns a function that prepares one text into the folder it is given."""
  text_folder = tmp_path_factory.mktemp("text")
  pieces = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(50)), "."]
  (text_folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
  rng = np.random.default_rng(0)
  lines = [
    "\n"
    if i % 5 == 4
    else " ".join(f"w{word_number}" for word_number in rng.integers(50, size=9))
    for i in range(200)
  ]
  (text_folder / "a.txt").write_text("\n".join(lines) + "\n")
  text_path, vocab_path = (
    str(text_folder / "a.txt"),
    str(text_folder / "vocab.txt"),
  )
  return lambda output: prepare.prepare(
    text_path, vocab_path, output, heldout=0.1, processes=1
  )


@pytest.fixture(scope="module")
def folder(prepare_text, tmp_path_factory):
  """Returns the path of an undamaged prepared folder."""
  output = str(tmp_path_factory.mktemp("prepared") / "out")
  prepare_text(output)
  return output


def flip_bit(path, share):
  """Flips a bit of a file, in the byte at the index `share` times its size."""
  content = bytearray(path.read_bytes())
  content[int(share * len(content))] ^= 2
  path.write_bytes(bytes(content))


def test_one_flipped_bit_anywhere_in_a_folder_is_noticed(folder, tmp_path):
  names = sorted(path.name for path in pathlib.Path(folder).iterdir())
  assert len(names) == 12
  for name in names:
    for share in (0.0, 0.5, 0.99):
      folder_copy = tmp_path / f"{name}-{share}"
      shutil.copytree(folder, folder_copy)
      flip_bit(folder_copy / name, share)
      with pytest.raises(ValueError, match=str(folder_copy)):
        reader.open_prepared(str(folder_copy))


@pytest.mark.parametrize(
  "key, value",
  [
    ("fingerprint", "0" * 64),
    ("lower_case", False),
    ("vocab_size", 7),
    ("splits", {}),
    ("splits", 3),
    ("format_version", 2),
    ("options", {"heldout": 0.2}),
    ("options", None),
    ("options", [1]),
    ("options", "x"),
  ],
)
def test_damaged_metadata_is_refused(folder, tmp_path, key, value):
  folder_copy = tmp_path / "out"
  shutil.copytree(folder, folder_copy)
  meta = json.loads((folder_copy / "meta.json").read_text())
  for damaged_meta in (
    {**meta, key: value},
    {name: meta[name] for name in meta if name != key},
  ):
    (folder_copy / "meta.json").write_text(json.dumps(damaged_meta))
    with pytest.raises(ValueError, match=str(folder_copy)):
      reader.open_prepared(str(folder_copy))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b"{"])
def test_a_meta_json_without_metadata_is_refused(folder, tmp_path, content):
  folder_copy = tmp_path / "out"
  shutil.copytree(folder, folder_copy)
  (folder_copy / "meta.json").write_bytes(content)
  with pytest.raises(ValueError, match="meta.json is damaged"):
    reader.open_prepared(str(folder_copy))


def test_a_large_folder_is_checked_by_prepare_only(
  folder, prepare_text, tmp_path, monkeypatch, capsys
):
  folder_copy = tmp_path / "out"
  shutil.copytree(folder, folder_copy)
  monkeypatch.setattr(reader, "MAX_CHECKED_BYTES", 0)
  prepare_text(str(folder_copy))
  flip_bit(folder_copy / "train.tokens", 0.5)
  for _ in range(2):
    reader.open_prepared(str(folder_copy))
  assert capsys.readouterr().err.count("not checked at every start") == 1
  with pytest.raises(ValueError, match="is damaged"):
    prepare_text(str(folder_copy))


def test_files_are_read_once_unless_they_change(folder, tmp_path, monkeypatch):
  folder_copy = tmp_path / "out"
  shutil.copytree(folder, folder_copy)
  files_read, original_digest = [], hashlib.file_digest
  monkeypatch.setattr(
    hashlib,
    "file_digest",
    lambda f, kind: files_read.append(f) or original_digest(f, kind),
  )
  for _ in range(3):
    reader.open_prepared(str(folder_copy))
  # All files but meta.json were read once.
  assert len(files_read) == 11
  flip_bit(folder_copy / "train.sentences", 0.5)
  with pytest.raises(ValueError, match="is damaged"):
    reader.open_prepared(str(folder_copy))
  # Only the changed file was read again.
  assert len(files_read) == 12


@pytest.mark.parametrize("inputs", [None, 3, [{}], [3]])
def test_prepare_refuses_metadata_without_inputs(
  folder, prepare_text, tmp_path, inputs
):
  folder_copy = tmp_path / "out"
  shutil.copytree(folder, folder_copy)
  meta = json.loads((folder_copy / "meta.json").read_text()) | {
    "inputs": inputs
  }
  if inputs is None:
    del meta["inputs"]
  (folder_copy / "meta.json").write_text(json.dumps(files.add_checksum(meta)))
  with pytest.raises(ValueError, match="meta.json is damaged.*Delete the fold"):
    prepare_text(str(folder_copy))


def test_a_damaged_progress_file_is_refused(prepare_text, tmp_path):
  partial_folder = tmp_path / "out.partial"
  partial_folder.write_text("")
  with pytest.raises(
    ValueError, match="out.partial is a file, and is in the way"
  ):
    prepare_text(str(tmp_path / "out"))
  partial_folder.unlink()
  partial_folder.mkdir()
  path = partial_folder / writer.PROGRESS_FILE
  writer.write_progress(str(partial_folder), {"records": 12345})
  assert writer.read_progress(str(partial_folder))["records"] == 12345
  progress_text = path.read_text()
  for text in (
    "",
    "{",
    "[]",
    "3",
    "{}",
    progress_text.replace("12345", "12355"),
  ):
    path.write_text(text)
    with pytest.raises(ValueError, match="progress.json is damaged; delete"):
      prepare_text(str(tmp_path / "out"))
