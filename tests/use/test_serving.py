"""Tests that `predict` answers a line as it arrives, and prints only JSON."""

import io
import json
import os
import pathlib
import subprocess
import sys
import time

import finetune_files as files
import pytest
import tiny_models
import tiny_tasks

from bert_jax.cli.main import execute
from bert_jax.tasks.files import requests
from bert_jax.use import predict, serve
from bert_jax.weights import hf

ROOT = str(pathlib.Path(__file__).parents[2])


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("serving")
  weights = tiny_tasks.write_fine_tuned(path / "classes", "classification")
  hf.write(str(path / "hf"), weights)
  config_path = path / "hf" / "config.json"
  fields = json.loads(config_path.read_text())
  del fields["hidden_dropout_prob"]
  config_path.write_text(json.dumps(fields))
  tiny_tasks.write_model(path / "bert")
  tiny_models.write_model(
    path / "roberta", "roberta", "pretraining", {"pairs": 0}
  )
  return path


def child_environment():
  return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ROOT}


def test_notes_are_not_among_the_predictions(
  models_folder, monkeypatch, capsys
):
  """A note on a missing field and a line that a library prints go to stderr."""
  original_open_predictor = predict.open_predictor

  def open_and_print(*arguments, **options):
    print("a library has something to say")
    return original_open_predictor(*arguments, **options)

  monkeypatch.setattr(predict, "open_predictor", open_and_print)
  lines = "".join(
    json.dumps({"text": text}) + "\n" for text in ("red cat", "dog")
  )
  stdin = io.TextIOWrapper(io.BytesIO(lines.encode()))
  monkeypatch.setattr(sys, "stdin", stdin)
  flags = [f"--model={models_folder / 'hf'}", "--input=-", "--output=-"]
  execute(["predict", *flags])
  printed = capsys.readouterr()
  predictions = [json.loads(line) for line in printed.out.splitlines()]
  assert [prediction["id"] for prediction in predictions] == [1, 2]
  assert "note: " in printed.err and "something to say" in printed.err


def test_stdout_has_only_json(models_folder, tmp_path, capsys):
  lines = [{"text": "red [MASK]", "answer": "cat"}]
  cloze_path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  flags = [
    f"--model={models_folder / 'bert'}",
    f"--cloze={cloze_path}",
    "--output=-",
  ]
  execute(["likelihood", *flags])
  printed = capsys.readouterr()
  assert json.loads(printed.out)["cloze"]["texts"] == 1
  # On a slow machine, lines about slow steps come before this line.
  assert printed.err.splitlines()[-1].startswith("cloze: accuracy")


FLAGS_BY_VERB = {
  "augment": ["--model=m", "--task=sst2", "--input=i"],
  "convert": ["--family=bert", "--from=hf", "--model=m"],
  "export": ["--model=m"],
  "features": ["--model=m", "--input=i"],
  "submission": ["--input=f"],
  "prepare": ["--input=i", "--vocab=v"],
  "prepare-task": ["--task=sst2", "--input=train=i", "--vocab=v"],
  "evaluate": ["--model=m", "--data=d"],
  "split-text": ["--input=i"],
  "vocab": ["--input=i", "--size=9"],
}


@pytest.mark.parametrize("verb", FLAGS_BY_VERB)
def test_no_command_makes_a_file_called_minus(verb, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match="error: .*--output -: .*stdout; name"):
    execute([verb, *FLAGS_BY_VERB[verb], "--output=-"])
  assert not list(tmp_path.iterdir())


def test_a_line_is_answered_while_the_pipe_is_open(models_folder):
  """Once the program is compiled, each answer takes less than a second."""
  flags = [f"--model={models_folder / 'classes'}", "--input=-", "--output=-"]
  with subprocess.Popen(
    [sys.executable, "-m", "bert_jax", "predict", *flags],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env=child_environment(),
  ) as process:
    answer_seconds = []
    for number in range(4):
      start_time = time.monotonic()
      line = json.dumps({"id": number, "text": "red cat"}) + "\n"
      # A line may come in two parts.
      for half_line in (line[:9], line[9:]):
        process.stdin.write(half_line)
        process.stdin.flush()
      assert json.loads(process.stdout.readline())["id"] == number
      answer_seconds.append(time.monotonic() - start_time)
    assert max(answer_seconds[1:]) < 1.0
    # The last line is cut, and has no line end.
    process.stdin.write('{"text": "dog"}\n{"text": "bird"')
    process.stdin.close()
    assert json.loads(process.stdout.readline())["id"] == 5
    assert process.stdout.readline() == ""
    assert process.wait() == 1


def make_examples(count):
  return ({"id": number} for number in range(count))


# While answers are fast, a full group is followed by a group of twice its size,
# up to the largest size.
def test_fast_lines_are_in_large_groups():
  group_maker = serve.GroupMaker(min_size=4, max_size=32)
  groups = group_maker.groups(
    make_examples(100), has_next_within=lambda seconds: True
  )
  assert [len(group) for group in groups] == [4, 8, 16, 32, 32, 8]


def test_slow_answers_make_groups_small_again(monkeypatch):
  clock = [0.0]
  monkeypatch.setattr(serve.time, "monotonic", lambda: clock[0])
  sizes = []
  group_maker = serve.GroupMaker(min_size=4, max_size=64)
  for group in group_maker.groups(
    make_examples(100), has_next_within=lambda seconds: True
  ):
    sizes.append(len(group))
    clock[0] += 0.1 * len(group)  # Each answer takes a tenth of a second.
  assert sizes == [4] * 25
  group_maker, sizes = serve.GroupMaker(min_size=4, max_size=64), []
  for group in group_maker.groups(
    make_examples(124), has_next_within=lambda seconds: True
  ):
    sizes.append(len(group))
    # The first groups are fast. Each later group takes a second.
    clock[0] += 0.01 if len(sizes) < 5 else 1.0
  assert sizes == [4, 8, 16, 32, 64]
  assert group_maker._size == 32


def test_lines_before_a_bad_line_are_answered():
  def lines():
    yield {"id": 1}
    yield {"id": 2}
    raise ValueError("in:3: no JSON")

  answered_lines = []
  with pytest.raises(ValueError, match="in:3"):
    group_maker = serve.GroupMaker(min_size=32, max_size=32)
    for group in group_maker.groups(
      lines(), has_next_within=lambda seconds: True
    ):
      answered_lines += group
  assert answered_lines == [{"id": 1}, {"id": 2}]


def test_lines_of_a_pipe_are_those_of_a_file(tmp_path):
  """The first line is long, the second is empty, the last has no line end."""
  lines = [b"a" * 200_000, b"", b"\xc3\xa9", b"last"]
  source = tmp_path / "lines"
  source.write_bytes(b"\n".join(lines))
  with source.open("rb") as source_file:
    arriving_lines = serve.ArrivingLines(source_file)
    assert arriving_lines.has_line_within(0.0)
    assert list(arriving_lines) == lines
    assert not arriving_lines.has_line_within(0.0)
  assert list(serve.ArrivingLines(io.BytesIO(b"a\nb"))) == [b"a\n", b"b"]


@pytest.mark.parametrize(
  "model, text, message",
  [
    ("bert", "cat <mask>", r"has <mask>, .* this model's mask is \[MASK\]"),
    ("roberta", "cat [MASK]", r"has \[MASK\], .* this model's mask is <mask>"),
    ("bert", "cat [mask]", r"no mask to fill: this model's mask is \[MASK\]"),
    ("roberta", "cat", "no mask to fill: this model's mask is <mask>"),
  ],
)
def test_a_text_without_the_models_mask_is_refused(
  models_folder, model, text, message
):
  predictor = predict.open_predictor(str(models_folder / model))
  mask = predict.mask_token(predictor)
  lines = [
    json.dumps({"text": line_text}) for line_text in (f"cat {mask}", text)
  ]
  with pytest.raises(ValueError, match=f"in:2: the text .*{message}"):
    list(requests.read(lines, "fill", "in", mask))
  examples = list(requests.read(lines[:1], "fill", "in", mask))
  assert len(predict.predict(predictor, examples)[0]["masks"]) == 1
