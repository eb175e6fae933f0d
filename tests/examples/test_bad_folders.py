"""A damaged prepared folder raises an error when it is opened."""

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
  """Returns a function that prepares the same text into a given folder."""
  path = tmp_path_factory.mktemp("text")
  pieces = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(50)), "."]
  (path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  rng = np.random.default_rng(0)
  lines = [
    "\n" if i % 5 == 4 else " ".join(f"w{j}" for j in rng.integers(50, size=9))
    for i in range(200)
  ]
  (path / "a.txt").write_text("\n".join(lines) + "\n")
  source, vocab = str(path / "a.txt"), str(path / "vocab.txt")
  return lambda output: prepare.prepare(
    source, vocab, output, heldout=0.1, processes=1
  )


@pytest.fixture(scope="module")
def folder(prepare_text, tmp_path_factory):
  """Returns the path of an undamaged prepared folder."""
  output = str(tmp_path_factory.mktemp("prepared") / "out")
  prepare_text(output)
  return output


def flip_bit(path, share):
  """Flips one bit of a file, in the byte number `share` * its size."""
  content = bytearray(path.read_bytes())
  content[int(share * len(content))] ^= 2
  path.write_bytes(bytes(content))


def test_one_flipped_bit_anywhere_in_a_folder_is_noticed(folder, tmp_path):
  names = sorted(path.name for path in pathlib.Path(folder).iterdir())
  assert len(names) == 12
  for name in names:
    for share in (0.0, 0.5, 0.99):
      output = tmp_path / f"{name}-{share}"
      shutil.copytree(folder, output)
      flip_bit(output / name, share)
      with pytest.raises(ValueError, match=str(output)):
        reader.open_prepared(str(output))


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
  output = tmp_path / "out"
  shutil.copytree(folder, output)
  meta = json.loads((output / "meta.json").read_text())
  for damaged_meta in (
    {**meta, key: value},
    {k: meta[k] for k in meta if k != key},
  ):
    (output / "meta.json").write_text(json.dumps(damaged_meta))
    with pytest.raises(ValueError, match=str(output)):
      reader.open_prepared(str(output))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b"{"])
def test_a_meta_json_without_metadata_is_refused(folder, tmp_path, content):
  output = tmp_path / "out"
  shutil.copytree(folder, output)
  (output / "meta.json").write_bytes(content)
  with pytest.raises(ValueError, match="meta.json is damaged"):
    reader.open_prepared(str(output))


def test_a_large_folder_is_checked_by_prepare_only(
  folder, prepare_text, tmp_path, monkeypatch, capsys
):
  output = tmp_path / "out"
  shutil.copytree(folder, output)
  monkeypatch.setattr(reader, "MAX_CHECKED_BYTES", 0)
  prepare_text(str(output))
  flip_bit(output / "train.tokens", 0.5)
  for _ in range(2):
    reader.open_prepared(str(output))
  assert capsys.readouterr().err.count("not checked at every start") == 1
  with pytest.raises(ValueError, match="is damaged"):
    prepare_text(str(output))


def test_files_are_read_once_unless_they_change(folder, tmp_path, monkeypatch):
  output = tmp_path / "out"
  shutil.copytree(folder, output)
  files_read, original_digest = [], hashlib.file_digest
  monkeypatch.setattr(
    hashlib,
    "file_digest",
    lambda f, kind: files_read.append(f) or original_digest(f, kind),
  )
  for _ in range(3):
    reader.open_prepared(str(output))
  assert len(files_read) == 11
  flip_bit(output / "train.sentences", 0.5)
  with pytest.raises(ValueError, match="is damaged"):
    reader.open_prepared(str(output))
  assert len(files_read) == 12


@pytest.mark.parametrize("inputs", [None, 3, [{}], [3]])
def test_prepare_refuses_metadata_without_inputs(
  folder, prepare_text, tmp_path, inputs
):
  output = tmp_path / "out"
  shutil.copytree(folder, output)
  meta = json.loads((output / "meta.json").read_text()) | {"inputs": inputs}
  if inputs is None:
    del meta["inputs"]
  (output / "meta.json").write_text(json.dumps(files.add_checksum(meta)))
  with pytest.raises(ValueError, match="meta.json is damaged.*Delete the fold"):
    prepare_text(str(output))


def test_a_damaged_progress_file_is_refused(prepare_text, tmp_path):
  partial = tmp_path / "out.partial"
  partial.write_text("")
  with pytest.raises(
    ValueError, match="out.partial is a file, and is in the way"
  ):
    prepare_text(str(tmp_path / "out"))
  partial.unlink()
  partial.mkdir()
  path = partial / writer.PROGRESS_FILE
  writer.write_progress(str(partial), {"records": 12345})
  assert writer.read_progress(str(partial))["records"] == 12345
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
