"""Damaged prepared folders are noticed when they are opened."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from bert_jax.data import corpus, preparing


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """A folder as `prepare` makes it."""
  path = tmp_path_factory.mktemp("text")
  pieces = [*corpus.SPECIAL_TOKENS, *(f"w{i}" for i in range(50)), "."]
  (path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  rng = np.random.default_rng(0)
  lines = [
    "\n" if i % 5 == 4 else " ".join(f"w{j}" for j in rng.integers(50, size=9))
    for i in range(200)
  ]
  (path / "a.txt").write_text("\n".join(lines) + "\n")
  arguments = dict(heldout=0.1, processes=1)
  output = str(path / "out")
  source, vocab = str(path / "a.txt"), str(path / "vocab.txt")
  preparing.prepare(source, vocab, output, **arguments)
  return output, lambda folder: preparing.prepare(
    source, vocab, folder, **arguments
  )


def flip(path, place):
  content = bytearray(path.read_bytes())
  content[int(place * len(content))] ^= 2
  path.write_bytes(bytes(content))


def test_one_flipped_bit_anywhere_in_a_folder_is_noticed(prepared, tmp_path):
  names = sorted(n for n in os.listdir(prepared[0]) if n != "meta.json")
  assert len(names) == 10
  for name in names:
    for place in (0.0, 0.5, 0.99):
      folder = tmp_path / f"{name}-{place}"
      shutil.copytree(prepared[0], folder)
      flip(folder / name, place)
      with pytest.raises(ValueError, match=str(folder)):
        corpus.open_prepared(str(folder))


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
def test_damaged_metadata(prepared, tmp_path, key, value):
  folder = tmp_path / "out"
  shutil.copytree(prepared[0], folder)
  meta = json.loads((folder / "meta.json").read_text())
  for damaged in ({**meta, key: value}, {k: meta[k] for k in meta if k != key}):
    (folder / "meta.json").write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=str(folder)):
      corpus.open_prepared(str(folder))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b"{"])
def test_metadata_that_are_none(prepared, tmp_path, content):
  folder = tmp_path / "out"
  shutil.copytree(prepared[0], folder)
  (folder / "meta.json").write_bytes(content)
  with pytest.raises(ValueError, match="meta.json is damaged"):
    corpus.open_prepared(str(folder))


def test_a_folder_beyond_the_limit_says_what_checks_it(
  prepared, tmp_path, monkeypatch, capsys
):
  folder = tmp_path / "out"
  shutil.copytree(prepared[0], folder)
  monkeypatch.setattr(corpus, "VERIFY_BYTES", 0)
  prepared[1](str(folder))
  flip(folder / "train.tokens", 0.5)
  for _ in range(2):
    corpus.open_prepared(str(folder))
  assert capsys.readouterr().out.count("not checked at every start") == 1
  with pytest.raises(ValueError, match="is damaged"):
    prepared[1](str(folder))


def test_files_are_read_once_unless_they_change(
  prepared, tmp_path, monkeypatch
):
  folder = tmp_path / "out"
  shutil.copytree(prepared[0], folder)
  read, digest = [], hashlib.file_digest
  monkeypatch.setattr(
    hashlib, "file_digest", lambda f, kind: read.append(f) or digest(f, kind)
  )
  for _ in range(3):
    corpus.open_prepared(str(folder))
  assert len(read) == 10
  flip(folder / "train.sentences", 0.5)
  with pytest.raises(ValueError, match="is damaged"):
    corpus.open_prepared(str(folder))
  assert len(read) == 11
