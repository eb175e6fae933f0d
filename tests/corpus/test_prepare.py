"""Tests what `prepare` writes, and that no interruption changes it."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from children import without_progress
from text_files import contents_of, names_in

import bert_jax
from bert_jax.corpus import prepare, reader, sources, tokenize, writer
from bert_jax.corpus import sizes as text_sizes
from bert_jax.examples import loader
from bert_jax.tasks import encoded_rows, prepare_task, task_inputs
from bert_jax.text import open_vocabulary, wordpiece
from bert_jax.text.vocabulary import SPECIAL_TOKENS

WORDS = [f"word{i}" for i in range(300)]
PIECES = [*SPECIAL_TOKENS, "word", "##s", "."] + [f"##{i}" for i in range(300)]
# Progress is saved after every small batch, so that a killed process leaves
# some work done and some undone.
PREPARE_SCRIPT = """
import sys
from bert_jax.corpus import prepare
from bert_jax.corpus import tokenize
tokenize._BATCH_CHARS = 2000
if __name__ == "__main__":
  prepare.prepare(*sys.argv[1:4], processes=2, save_seconds=0, heldout=0.2)
"""


def make_text(num_documents: int, seed: int = 0) -> str:
  rng = random.Random(seed)

  def sentence() -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + "."

  texts = [
    "\n".join(sentence() for _ in range(rng.randint(1, 6)))
    for _ in range(num_documents)
  ]
  return "\n\n".join(texts) + "\n"


@pytest.fixture
def text_path(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text(make_text(200))
  return str(path)


@pytest.fixture
def vocab_path(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n")
  return str(path)


def build_splits(inputs: str, heldout: float) -> dict[str, reader.Corpus]:
  """Builds the corpora of both splits in memory, one document at a time."""
  tokenizer = wordpiece.build(PIECES)
  documents = {"train": [], "validation": []}
  for document in sources.read_documents(inputs):
    share = tokenize.document_hash(document) / 2**64
    split = "validation" if share < heldout else "train"
    documents[split].append(tokenizer.encode_batch(document))
  return {
    split: reader.corpus_from_documents(
      d, [[tokenizer.find_word_starts(s) for s in sentences] for sentences in d]
    )
    for split, d in documents.items()
  }


def test_folder_holds_the_corpus(tmp_path, text_path, vocab_path):
  output = str(tmp_path / "out")
  meta = prepare.prepare(
    text_path, vocab_path, output, heldout=0.2, processes=1
  )
  prepared_folder = reader.open_prepared(output)
  expected_splits = build_splits(text_path, 0.2)
  assert set(prepared_folder.splits) == {"train", "validation"}
  for split, corpus in prepared_folder.splits.items():
    assert corpus.spellings is None
    for name, array in zip(corpus._fields[:4], corpus[:4], strict=True):
      assert array.dtype == getattr(expected_splits[split], name).dtype
      np.testing.assert_array_equal(
        array, getattr(expected_splits[split], name)
      )
    assert meta["splits"][split] == {
      "tokens": corpus.num_tokens,
      "sentences": len(corpus.sentences) - 1,
      "documents": corpus.num_documents,
    }
  assert 20 < prepared_folder.splits["validation"].num_documents < 60
  counts = np.bincount(expected_splits["train"].tokens, minlength=len(PIECES))
  np.testing.assert_array_equal(prepared_folder.unigrams, counts)
  assert prepared_folder.vocab == PIECES
  assert meta["lower_case"] is True and meta["tokenizer"] == "wordpiece"
  assert len(meta["fingerprint"]) == 64
  assert names_in(tmp_path) == ["out", "text.txt", "vocab.txt"]


def test_bytes_do_not_depend_on_the_number_of_processes(
  tmp_path, text_path, vocab_path, monkeypatch
):
  contents = []
  for processes, batch_chars in ((1, 2**18), (3, 500), (2, 10)):
    monkeypatch.setattr(tokenize, "_BATCH_CHARS", batch_chars)
    output = str(tmp_path / f"out{processes}")
    prepare.prepare(text_path, vocab_path, output, processes=processes)
    contents.append(contents_of(output))
  assert contents[0] == contents[1] == contents[2]


def child_pids(pid: int) -> list[int]:
  try:
    pids = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in pids.split()]
  except OSError:
    return []


def is_alive(pid: int) -> bool:
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] not in "ZX"
  except OSError:
    return False


def test_after_kills_the_output_has_the_bytes_of_a_whole_run(
  tmp_path, text_path, vocab_path
):
  expected_folder, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(
    text_path, vocab_path, expected_folder, heldout=0.2, processes=1
  )
  script = tmp_path / "run.py"
  script.write_text(PREPARE_SCRIPT)
  command = [sys.executable, str(script), text_path, vocab_path, output]
  root = pathlib.Path(bert_jax.__file__).parent.parent
  process_options = {"env": {**os.environ, "PYTHONPATH": str(root)}}
  num_killed = 0
  for num_records_before_kill in (0, 60, 120):
    process = subprocess.Popen(
      command, stderr=subprocess.DEVNULL, **process_options
    )
    wait_for_records(process, output, num_records_before_kill)
    pids = child_pids(process.pid)
    process.kill()
    process.wait()
    for _ in range(2000):
      if not any(map(is_alive, pids)):
        break
      time.sleep(0.01)
    else:
      pytest.fail("workers outlive a killed parent")
    if pathlib.Path(output).exists():
      break
    num_killed += 1
    # `prepare` must delete bytes that were written after the last save.
    with pathlib.Path(output + ".partial/train.tokens").open("ab") as f:
      f.write(b"torn")
  assert num_killed
  process = subprocess.run(
    command, capture_output=True, text=True, **process_options
  )
  assert process.returncode == 0, process.stderr
  if num_killed == 3:
    assert "going on after" in process.stderr
  assert contents_of(output) == contents_of(expected_folder)


def wait_for_records(process, output: str, num_records: int) -> None:
  path = pathlib.Path(output + ".partial/progress.json")
  while process.poll() is None:
    with contextlib.suppress(FileNotFoundError):
      if json.loads(path.read_text())["records"] >= num_records:
        return
    time.sleep(0.001)


@pytest.mark.parametrize("os_function", ["replace", "rename", "unlink"])
def test_an_interruption_at_the_end_does_not_change_the_output(
  tmp_path, text_path, vocab_path, monkeypatch, os_function
):
  expected_output, output = str(tmp_path / "whole"), str(tmp_path / "out")
  prepare.prepare(text_path, vocab_path, expected_output, processes=1)
  original_function = getattr(os, os_function)

  def interrupt(path, *arguments):
    if os_function != "replace" or "/.meta.json." in str(path):
      raise KeyboardInterrupt
    original_function(path, *arguments)

  monkeypatch.setattr(os, os_function, interrupt)
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(text_path, vocab_path, output, processes=1)
  monkeypatch.undo()
  prepare.prepare(text_path, vocab_path, output, processes=1)
  assert contents_of(output) == contents_of(expected_output)


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_says_that_it_can_be_continued(
  tmp_path, vocab_path, stop_signal
):
  path = tmp_path / "text.txt"
  path.write_text(make_text(300) * 100)
  output = str(tmp_path / "out")
  arguments = ("--input", str(path), "--vocab", vocab_path, "--output", output)
  command = [sys.executable, "-m", "bert_jax", "prepare", *arguments]
  # Tests that run in the background may ignore SIGINT. A child process inherits
  # this setting, but it does not inherit a handler.
  previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
  process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
  signal.signal(signal.SIGINT, previous_handler)
  # Once there are records, the worker processes have started. A worker that
  # still starts when its parent ends would print a traceback.
  wait_for_records(process, output, num_records=1)
  process.send_signal(stop_signal)
  _, error_output = process.communicate()
  assert process.returncode == 1
  assert without_progress(error_output) == (
    "stopped; the same command continues where it stopped.\n"
  )
  with pytest.raises(ValueError, match="there is no prepared folder"):
    reader.open_prepared(output)


# Documents whose hash is below a threshold are held out. `prepare` finds that
# the first threshold leaves a split empty, so it starts again with another one.
def test_an_interruption_at_a_new_threshold_leaves_no_empty_split(
  tmp_path, vocab_path, monkeypatch
):
  path = tmp_path / "two.txt"
  path.write_text("word1.\n\nword2.\n\nword1.\n")
  output = str(tmp_path / "out")
  original_start = prepare._start_progress

  def interrupt_second_start(partial, origin, threshold):
    progress = original_start(partial, origin, threshold)
    if threshold != int(0.001 * 2**64):
      raise KeyboardInterrupt
    return progress

  monkeypatch.setattr(prepare, "_start_progress", interrupt_second_start)
  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(str(path), vocab_path, output, heldout=0.001)
  monkeypatch.undo()
  meta = prepare.prepare(str(path), vocab_path, output, heldout=0.001)
  # No split is empty, and the two copies are in one split.
  document_counts = [
    meta["splits"][split]["documents"] for split in reader.SPLITS
  ]
  assert sorted(document_counts) == [1, 2]


@pytest.mark.parametrize("heldout", [0.0, 0.005, 0.999999])
# If a split is empty, the documents are divided again. Copies of one document
# cannot be divided.
def test_splits_of_a_small_corpus(tmp_path, vocab_path, heldout, capfd):
  path = tmp_path / "text.txt"
  path.write_text(make_text(5))
  # Each path may be a string or a `pathlib.Path`.
  meta = prepare.prepare(
    str(path), pathlib.Path(vocab_path), tmp_path / "out", heldout=heldout
  )
  assert reader.open_prepared(tmp_path / "out").meta == meta
  num_heldout = {0.0: 0, 0.005: 2, 0.999999: 4}[heldout]
  message_by_heldout = {
    0.0: "",
    0.005: "5 to train on, 0",
    0.999999: "0 to train on",
  }
  err = capfd.readouterr().err
  assert ("divided again" in err) == (heldout > 0)
  assert message_by_heldout[heldout] in err
  assert meta["splits"]["validation"]["documents"] == num_heldout
  assert meta["splits"]["train"]["documents"] == 5 - num_heldout
  for content, count, description in (
    ("word1.\n\nword1.\n", 2, "2 copies of one document"),
    ("word1.\n", 1, "one document"),
  ):
    path.write_text(content)
    meta = prepare.prepare(
      str(path), vocab_path, str(tmp_path / str(count)), heldout=heldout
    )
    assert meta["splits"]["train"]["documents"] == count
    line = (
      f"warning: all text is {description}; there is nothing to hold out.\n"
    )
    err = capfd.readouterr().err
    assert ("nothing to hold out" in err) == (heldout > 0)
    assert (line in err) == (heldout > 0)


@pytest.mark.parametrize(
  "format, end",
  [
    (
      "bert",
      "; if it is plain text, give --format: text (each file is a document),"
      " text_blocks (a blank line between documents) or text_lines (each line"
      " is a document).",
    ),
    (
      "text_lines",
      "; if several documents belong together, give another --format: text"
      " (each file is a document) or text_blocks (a blank line between"
      " documents).",
    ),
    ("jsonl", "."),
  ],
)
def test_the_advice_leaves_out_the_format_of_the_text(
  format, end, tmp_path, vocab_path, capfd
):
  separator_by_format = {"bert": "\n\n", "text_lines": "\n"}
  one_word_sentences = [f"word{i}." for i in range(4)]
  if format == "jsonl":
    text = "".join(
      json.dumps({"text": word}) + "\n" for word in one_word_sentences
    )
  else:
    text = separator_by_format[format].join(one_word_sentences) + "\n"
  (tmp_path / "text").write_text(text)
  prepare.prepare(
    str(tmp_path / "text"),
    vocab_path,
    str(tmp_path / "out"),
    format=format,
    heldout=0,
  )
  lines = capfd.readouterr().err.splitlines()
  (warning_line,) = [
    warning_line for warning_line in lines if "next sentence" in warning_line
  ]
  assert warning_line == (
    "warning: 100% of the documents are one sentence, so there is no next"
    f" sentence in them{end}"
  )


def test_a_warning_about_long_sentences_advises_only_in_bert_format():
  statistics = text_sizes.LengthStatistics(
    mean_tokens=101,
    longest_sentence=101,
    num_single_sentence_documents=0,
    num_documents=1,
  )
  start_of_warning = (
    "warning: a sentence has 101 tokens on average, which is long"
  )
  for formats, end in (
    ({"bert"}, "; if it is plain text, give --format: text (each file is"),
    ({"text_lines"}, "."),
  ):
    _, warning_line = text_sizes.statistics_lines("train", statistics, formats)
    assert warning_line.startswith(start_of_warning + end)


def test_other_options_or_inputs_are_refused_for_an_old_folder(
  tmp_path, text_path, vocab_path, capfd
):
  output = str(tmp_path / "out")
  meta = prepare.prepare(text_path, vocab_path, output)
  assert prepare.prepare(text_path, vocab_path, output) == meta
  assert "is prepared already" in capfd.readouterr().err
  with pytest.raises(ValueError, match=r"heldout was 0\.005, is 0\.1"):
    prepare.prepare(text_path, vocab_path, output, heldout=0.1)
  pathlib.Path(output).rename(output + ".partial")
  with pytest.raises(ValueError, match=r"holds files but no progress\.json"):
    prepare.prepare(text_path, vocab_path, output)
  writer.write_progress(output + ".partial", {"origin": meta, "records": 1})
  with pathlib.Path(text_path).open("a") as f:
    f.write("More.\n")
  with pytest.raises(ValueError, match=r"text\.txt has changed.*delete"):
    prepare.prepare(text_path, vocab_path, output)


def test_a_difference_of_inputs_is_described():
  def origin(*names):
    return {
      "options": {},
      "inputs": [
        {"name": name, "format": "bert", "version": [1]} for name in names
      ],
    }

  difference = prepare.describe_difference
  assert difference(origin("a", "b"), origin("a", "b")) == ""
  assert difference(origin("a"), origin("a", "b")) == "the input b is new"
  assert "a is not given any more" in difference(origin("a", "b"), origin("b"))
  assert "order" in difference(origin("a", "b"), origin("b", "a"))


# Limits the size of files, and then runs Python with the script's arguments.
FILE_LIMIT_SCRIPT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def run_prepare(
  *arguments: str, launcher: tuple[str, ...] = ()
) -> subprocess.CompletedProcess:
  command = [sys.executable, *launcher, "-m", "bert_jax", "prepare"]
  command += ["--processes", "1", *arguments]
  return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("a.txt", "", "there is no text in it"),
    ("a.txt", " \n\x00\n\u200b\n", "there is no text in it"),
    ("a.jsonl", '{"text": "word1."}\n{"text": 1}\n', "a.jsonl:2: "),
    ("b.txt", None, "there is no file"),
  ],
)
def test_bad_text_leaves_nothing(tmp_path, vocab_path, name, content, message):
  path = tmp_path / name
  if content is not None:
    path.write_text(content, encoding="utf-8")
  names_before = names_in(tmp_path)
  output = str(tmp_path / "out")
  process = run_prepare(
    "--input", str(path), "--vocab", vocab_path, "--output", output
  )
  assert process.returncode == 1
  error = without_progress(process.stderr)
  assert error.startswith("error: ") and message in error
  assert error.count("\n") == 1
  assert names_in(tmp_path) == names_before


def test_a_full_disk_gives_one_sentence_and_the_run_can_continue(
  tmp_path, text_path, vocab_path
):
  output = str(tmp_path / "out")
  arguments = ("--input", text_path, "--vocab", vocab_path, "--output", output)
  process = run_prepare(*arguments, launcher=("-c", FILE_LIMIT_SCRIPT))
  assert process.returncode == 1
  error = without_progress(process.stderr)
  assert error.startswith(f"error: {output}.partial: File too large.")
  assert error.count("\n") == 1
  process = run_prepare(*arguments)
  assert process.returncode == 0, process.stderr
  assert "--config bert:base" in process.stdout
  assert "data.cased=False" in process.stdout
  assert reader.open_prepared(output).splits["train"].num_documents > 150


def test_unknown_words_are_reported(tmp_path, vocab_path):
  path = tmp_path / "text.txt"
  path.write_text("word1 nonsense.\n\nword2 balderdash.\n")
  output = str(tmp_path / "out")
  process = run_prepare(
    "--input", str(path), "--vocab", vocab_path, "--output", output
  )
  assert "[UNK]: 25.00% of the tokens" in process.stderr
  assert "warning: many words are unknown" in process.stderr


def test_a_killed_worker_is_reported():
  with pytest.raises(ChildProcessError, match="exit code 7"):
    list(tokenize.ordered_map(_exit_with_code, (7,), range(3), processes=2))
  with pytest.raises(ZeroDivisionError):
    list(
      tokenize.ordered_map(_make_inverse_function, (), range(3), processes=2)
    )


def _exit_with_code(code: int):
  os._exit(code)


def _make_inverse_function():
  return lambda x: 1 // x


def test_a_wordpiece_vocabulary_only_in_tokenizer_json(
  text_path, vocab_path, tmp_path
):
  """A folder of a fast tokenizer of transformers may have no vocab.txt."""
  fast_folder = tmp_path / "model"
  fast_folder.mkdir()
  vocabulary = open_vocabulary.load(vocab_path)
  (fast_folder / "tokenizer.json").write_text(
    vocabulary.special_tokenizer.to_str()
  )
  for source, name in ((vocab_path, "plain"), (str(fast_folder), "fast")):
    prepare.prepare(text_path, source, str(tmp_path / name), heldout=0.2)
  text_folder, json_folder = (
    reader.open_prepared(str(tmp_path / name)) for name in ("plain", "fast")
  )
  assert json_folder.vocab == text_folder.vocab == PIECES
  assert json_folder.special == text_folder.special == (0, 1, 2, 3, 4)
  assert not (tmp_path / "fast" / "vocab.txt").exists()
  for split in reader.SPLITS:
    np.testing.assert_array_equal(
      json_folder.splits[split].tokens, text_folder.splits[split].tokens
    )


UNGUARDED_SCRIPT = """
import sys
from bert_jax.corpus import prepare
prepare.prepare(*sys.argv[1:4], processes=2)
"""


def test_a_script_without_a_guard_gets_an_error(
  tmp_path, text_path, vocab_path
):
  """Without the guard, each worker that imports the script would run `prepare`.

  The guard is the line `if __name__ == "__main__":`.
  """
  script = tmp_path / "script.py"
  script.write_text(UNGUARDED_SCRIPT)
  process = subprocess.run(
    [sys.executable, str(script), text_path, vocab_path, str(tmp_path / "out")],
    capture_output=True,
    text=True,
  )
  last_line = process.stderr.strip().splitlines()[-1]
  assert last_line.startswith(
    "ChildProcessError: a worker process could not begin"
  )
  assert 'if __name__ == "__main__":' in last_line and "memory" not in last_line


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_error_for_a_worker_that_a_signal_ends_names_memory(signal_number):
  outputs = tokenize.ordered_map(
    _make_kill_at_3, (int(signal_number),), range(8), processes=2
  )
  with pytest.raises(ChildProcessError, match="ended early .*memory"):
    list(outputs)


def _make_kill_at_3(signal_number):
  def kill_at_3(x):
    if x == 3:
      os.kill(os.getpid(), signal_number)
    return x

  return kill_at_3


def test_task_folders_and_text_folders_are_not_mixed_up(
  tmp_path, text_path, vocab_path
):
  """The error says for which command the folder was prepared."""
  text_folder = str(tmp_path / "text_folder")
  prepare.prepare(text_path, vocab_path, text_folder, processes=1)
  with pytest.raises(
    ValueError, match="holds text for pre-training; to fine-tune"
  ):
    encoded_rows.read_meta(text_folder)
  (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "word\t0\n" * 4)
  task_folder = str(tmp_path / "task_folder")
  inputs = [task_inputs.Input("train", str(tmp_path / "train.tsv"))]
  prepare_task.prepare(
    task_inputs.find_task("sst2"), inputs, vocab_path, task_folder
  )
  with pytest.raises(ValueError, match="rows of a task, which .*to pre-train"):
    reader.open_prepared(task_folder)
  with pytest.raises(ValueError, match="rows of a task"):
    loader.open_data(task_folder, "bert_pairs")
