"""Tests files.py: JSON, new files and folders, locks, full disks."""

import json
import os
import pathlib
import resource

import pytest
from text_files import names_in

from bert_jax import files
from bert_jax.cli.main import execute
from bert_jax.corpus import reader, sources, train_vocab, writer
from bert_jax.tasks import encoded_rows
from bert_jax.tasks.files import tables
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import SPECIAL_TOKENS
from bert_jax.weights import hf_files, model_folder

DEEP_LIST = "[" * 10**5
DEEP_DICT = '{"a": ' * 10**5 + "1" + "}" * 10**5


@pytest.mark.parametrize("text", [DEEP_LIST, DEEP_DICT, "[" * 101 + "]" * 101])
def test_json_that_is_nested_too_deeply_is_refused(text):
  with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
    files.parse_json(text)
  with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
    files.parse_json(text.encode())


def test_brackets_in_text_and_wide_json_are_accepted():
  wide_value = {"a": ["[" * 500, [[1]] * 500, {"b": {}}]}
  assert files.parse_json(json.dumps(wide_value)) == wide_value
  deep_value = json.loads("[" * 100 + "]" * 100)
  assert files.parse_json(json.dumps(deep_value)) == deep_value


def test_a_number_with_too_many_digits_is_refused():
  with pytest.raises(json.JSONDecodeError, match="too many digits"):
    files.parse_json("9" * 5000)


def in_folder(read):
  """Returns a function that calls `read` with the folder of its argument."""
  return lambda path: read(str(pathlib.Path(path).parent))


@pytest.mark.parametrize(
  "text", [DEEP_DICT, '{"a": ' + "9" * 5000 + "}", "\xff"]
)
@pytest.mark.parametrize(
  "name, read",
  [
    ("config.json", in_folder(model_folder.read)),
    ("meta.json", in_folder(encoded_rows.read_meta)),
    ("meta.json", in_folder(reader.open_prepared)),
    ("pieces.json", in_folder(open_vocabulary.read_pieces)),
    (hf_files.SAFETENSORS_INDEX, in_folder(hf_files.read)),
    ("tokenizer.json", open_vocabulary.load),
    ("vocab.json", open_vocabulary.load),
    ("progress.json", in_folder(writer.read_progress)),
    ("a.jsonl", lambda path: list(tables.jsonl_records(path))),
    (
      "a.jsonl",
      lambda p: list(sources.read_file(p, format="jsonl", errors="strict")),
    ),
  ],
)
def test_the_error_of_bad_json_names_the_file(tmp_path, name, read, text):
  path = tmp_path / name
  path.write_bytes(text.encode("latin-1"))
  (tmp_path / "merges.txt").write_text("#version: 0.2\n")
  with pytest.raises(ValueError, match=str(tmp_path)):
    read(str(path))


def safetensors_header(**entries):
  text = json.dumps(entries).encode()
  return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
  "offsets_by_name, num_bytes, message",
  [
    # This file is right.
    ({"a": [0, 4], "b": [4, 8]}, 8, None),
    ({"a": [0, 4], "b": [2, 6]}, 6, "invalid offset for tensor `b`"),
    ({"a": [0, 4], "b": [0, 4]}, 4, "invalid offset for tensor `[ab]`"),
    ({"a": [0, 4], "b": [6, 10]}, 10, "invalid offset for tensor `b`"),
    ({"a": [2, 6], "b": [6, 10]}, 10, "invalid offset for tensor `a`"),
    ({"a": [0, 4]}, 8, "file not fully covered"),
    ({"a": [0, 4], "b": [4, 8]}, 7, "file not fully covered"),
    ({"a": [4, 0]}, 4, "invalid offset for tensor `a`"),
    ({"a": [-4, 0]}, 4, "integer `-4`, expected usize"),
    ({"a": [0, 1e400]}, 4, "invalid JSON in header"),
    ({"a": [0, 10**30]}, 4, "point `1e.30`, expected usize"),
    ({"a": [0.0, 4.0]}, 4, "point `0.0`, expected usize"),
    ({"a": "0:4"}, 4, "expected a tuple of size 2"),
    ({"a": [0, 2, 4]}, 4, "invalid length 3"),
  ],
)
def test_only_wrong_offsets_in_a_safetensors_file_are_refused(
  tmp_path, offsets_by_name, num_bytes, message
):
  path = tmp_path / "a.safetensors"
  tensors = {
    name: {"dtype": "F32", "shape": [1], "data_offsets": offsets}
    for name, offsets in offsets_by_name.items()
  }
  path.write_bytes(safetensors_header(**tensors) + bytes(num_bytes))
  if message is None:
    assert sorted(model_folder.read_tensors(str(path))) == ["a", "b"]
    return
  with pytest.raises(
    ValueError, match=f"{path} is damaged, or has an unknown dtype.*{message}"
  ):
    model_folder.read_tensors(str(path))


@pytest.mark.parametrize(
  "entry",
  [
    3,
    [],
    {},
    {"dtype": "F32", "shape": [1]},
    {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]},
  ],
)
def test_wrong_types_in_a_safetensors_file_are_refused(tmp_path, entry):
  path = tmp_path / "a.safetensors"
  path.write_bytes(safetensors_header(a=entry) + bytes(4))
  with pytest.raises(
    ValueError, match=f"{path} is damaged, or has an unknown dtype"
  ):
    model_folder.read_tensors(str(path))


@pytest.mark.parametrize(
  "weight_map", [{"a": 3}, {"a": ["x"]}, {"a": "../x"}, []]
)
def test_wrong_types_in_an_index_are_refused(tmp_path, weight_map):
  path = tmp_path / "model.safetensors.index.json"
  path.write_text(json.dumps({"weight_map": weight_map}))
  with pytest.raises(ValueError, match=f"{path}"):
    hf_files.read(str(tmp_path))


def test_names_of_temporary_files_cannot_be_guessed(tmp_path, monkeypatch):
  """A writer then follows no link that another user put into the folder."""
  victim = tmp_path / "victim"
  victim.write_text("old")
  names_and_flags = []
  original_open = os.open

  def open_and_list(path, flags, *arguments, **options):
    if flags & os.O_CREAT:
      names_and_flags.append((pathlib.Path(path).name, flags))
    return original_open(path, flags, *arguments, **options)

  monkeypatch.setattr(os, "open", open_and_list)
  for ending in (".tmp", ".partial"):
    (tmp_path / f"a{ending}").symlink_to(victim)
  for _ in range(2):
    files.write_atomically(str(tmp_path / "a"), "new")
    with files.atomic_file(str(tmp_path / "a")) as temporary:
      pathlib.Path(temporary).write_text("newer")
  assert victim.read_text() == "old" and (tmp_path / "a").read_text() == "newer"
  names = [name for name, _ in names_and_flags]
  assert len(set(names)) == len(names) == 4
  assert all(flags & os.O_EXCL for _, flags in names_and_flags)
  assert names_in(tmp_path) == [
    "a",
    "a.partial",
    "a.tmp",
    "victim",
  ]
  # The new file has the permissions that a directly written file gets.
  directly_written_file = tmp_path / "plain"
  directly_written_file.write_text("")
  assert (tmp_path / "a").stat().st_mode == directly_written_file.stat().st_mode


def test_a_link_in_place_of_an_unfinished_folder_is_refused(tmp_path):
  (tmp_path / "other").mkdir()
  (tmp_path / "out.partial").symlink_to(tmp_path / "other")
  with (
    pytest.raises(ValueError, match="out.partial is a link, and is in the way"),
    writer.hold_folder_lock(str(tmp_path / "out.partial")),
  ):
    pass
  assert not names_in(tmp_path / "other")


def test_a_lock_is_held_only_once(tmp_path):
  path = str(tmp_path / "lock")
  for _ in range(2):
    with (
      files.hold_lock(path),
      pytest.raises(files.LockHeld, match="lock: another process holds"),
      files.hold_lock(path),
    ):
      pass
  (tmp_path / "link").symlink_to(tmp_path / "victim")
  with pytest.raises(OSError), files.hold_lock(str(tmp_path / "link")):
    pass
  assert not (tmp_path / "victim").exists()
  partial_path = str(tmp_path / "out.partial")
  with (
    writer.hold_folder_lock(partial_path),
    pytest.raises(ValueError, match="partial: another run is writing it"),
    writer.hold_folder_lock(partial_path),
  ):
    pass
  # The file of a lock stays, but `prepare` can lock it again.
  with writer.hold_folder_lock(partial_path):
    assert writer.read_progress(partial_path) is None


def test_only_temporary_files_of_killed_writers_are_deleted(tmp_path):
  leftover = files.temporary_path(str(tmp_path / "progress.json"))
  for path in (leftover, tmp_path / ".a.tmp", tmp_path / "b.tmp"):
    pathlib.Path(path).touch()
  files.delete_temporary_files(str(tmp_path))
  assert names_in(tmp_path) == [".a.tmp", "b.tmp"]


def run_with_a_full_disk(*arguments):
  """Returns the error of a command that can write only 20 bytes to a file."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    with pytest.raises(SystemExit) as error:
      execute([*map(str, arguments)])
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  return error.value.code


def test_the_error_of_a_full_disk_names_the_task_folder(tmp_path):
  pieces = [*SPECIAL_TOKENS, "good", "bad"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  (tmp_path / "a.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
  names_before = names_in(tmp_path)
  error = run_with_a_full_disk(
    *("prepare-task", "--task=sst2"),
    *(f"--input=train={tmp_path}/a.tsv", f"--vocab={tmp_path}/vocab.txt"),
    f"--output={tmp_path}/out",
  )
  assert error == (
    f"error: {tmp_path}/out: File too large; nothing was written."
  )
  assert names_in(tmp_path) == names_before


@pytest.mark.parametrize(
  "algorithm, name",
  [("wordpiece", "v.txt"), ("bytelevel", "v"), ("unigram", "v.model")],
)
def test_a_full_disk_leaves_no_part_of_a_vocabulary(
  tmp_path, monkeypatch, algorithm, name
):
  (tmp_path / "a.txt").write_text("some good words and some bad words\n" * 50)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  original_write = train_vocab._write_files

  def write_on_a_full_disk(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    original_write(*arguments)

  monkeypatch.setattr(train_vocab, "_write_files", write_on_a_full_disk)
  try:
    with pytest.raises(OSError) as error:
      train_vocab.train_vocab(
        str(tmp_path / "a.txt"),
        size=300,
        output=str(tmp_path / name),
        algorithm=algorithm,
      )
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert error.value.filename == str(tmp_path / name)
  assert names_in(tmp_path) == ["a.txt"]


def test_a_folder_with_an_unknown_tokenizer_is_refused(tmp_path):
  pieces = [*SPECIAL_TOKENS, "good", "bad"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  (tmp_path / "a.txt").write_text("good bad\n\nbad good\n\ngood\n\nbad\n")
  arguments = [f"--input={tmp_path}/a.txt", f"--vocab={tmp_path}/vocab.txt"]
  arguments += [f"--output={tmp_path}/out", "--processes=1"]
  execute(["prepare", *arguments])
  path = tmp_path / "out" / "meta.json"
  meta = files.add_checksum(json.loads(path.read_text()) | {"tokenizer": "foo"})
  path.write_text(json.dumps(meta))
  with pytest.raises(SystemExit) as error:
    execute(["prepare", *arguments])
  assert f"{path} is damaged: its tokenizer is 'foo'" in error.value.code
