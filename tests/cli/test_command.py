"""Tests `bert_jax VERB`: its help, flags, errors and imports."""

import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
import tomllib
import types

import pytest
from children import without_progress

from bert_jax import messages
from bert_jax.cli import errors, flags
from bert_jax.cli.errors import CommandStopped
from bert_jax.cli.main import (
  VERBS,
  execute,
  load_verb,
  overview,
  parser_of,
)
from bert_jax.corpus import prepare, split_text
from bert_jax.messages import DamagedFile, OutOfMemory
from bert_jax.training import train

ROOT = pathlib.Path(__file__).parents[2]


def run_module(*arguments):
  return subprocess.run(
    [sys.executable, "-m", *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
  )


def test_the_overview_has_a_line_for_every_verb():
  lines = overview().splitlines()
  for verb, summary in VERBS.items():
    assert [line for line in lines if line.split()[:1] == [verb]] != [], verb
    assert overview().count(summary) == 1
  assert max(map(len, lines)) <= 80
  modules = {path.stem for path in (ROOT / "bert_jax" / "cli").glob("*.py")}
  modules_without_verb = {"__init__", "main", "flags", "configs", "errors"}
  assert modules - modules_without_verb == {
    verb.replace("-", "_") for verb in VERBS
  }


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_at_most_50_lines_and_an_example(verb):
  lines = parser_of(verb).format_help().splitlines()
  assert len(lines) <= 50 and max(map(len, lines)) <= 80
  assert lines[0].startswith(f"usage: bert_jax {verb} ")
  example = lines[lines.index("example:") + 1]
  assert example.startswith(f"  bert_jax {verb} ")


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_has_only_flags_that_exist(verb):
  parser = parser_of(verb)
  text = parser.format_help().split("example:\n")[1]
  for word in text.split():
    if word.startswith("--") and not word.startswith("--config."):
      assert word.partition("=")[0] in parser._option_string_actions, word


def test_flags_have_hyphens_and_shared_flags_are_defined_once():
  """A flag of several verbs is defined in `flags.SHARED_FLAGS`."""
  verbs_by_flag: dict[str, list[str]] = {}
  for verb in VERBS:
    for flag in parser_of(verb)._option_string_actions:
      verbs_by_flag.setdefault(flag, []).append(verb)
  for flag, verbs in verbs_by_flag.items():
    assert "_" not in flag
    if len(verbs) > 1 and flag not in ("-h", "--help", "--rules"):
      assert flag.removeprefix("--") in flags.SHARED_FLAGS, (flag, verbs)
  for flag in flags.SHARED_FLAGS:
    assert f"--{flag}" in verbs_by_flag


@pytest.mark.parametrize(
  "arguments, sentence",
  [
    (["predit"], "predit is no verb; did you mean predict?"),
    (["predict", "--modle=m"], "--modle is no flag; did you mean --model?"),
    (["predict", "--batch_size=3"], "did you mean --batch-size?"),
    (["train", "--confg=c"], "--confg is no flag; did you mean --config?"),
    (["train", "--workdir=w"], "required: --config; bert_jax train --help"),
    (
      ["train", "--config=none.py", "--workdir=w"],
      "--config=none.py: there is no such file",
    ),
    (["submission", "--output=o"], "required: --input; bert_jax submission"),
    (["export", "--model=m", "--output=o", "more"], "argument 'more'"),
  ],
)
def test_a_wrong_command_line_gets_one_sentence(arguments, sentence):
  with pytest.raises(SystemExit) as exit_info:
    execute(arguments)
  message = exit_info.value.code
  assert message.startswith("error: ") and sentence in message
  assert "\n" not in message


def test_config_prints_every_value(capsys):
  path = str(ROOT / "configs" / "quickstart.py")
  execute(["config", path, "--config.seed=7", "--config.model.heads=2"])
  lines = capsys.readouterr().out.splitlines()
  assert "seed = 7" in lines and "model.heads = 2" in lines
  assert "objective.name = 'mlm'" in lines and len(lines) > 40


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
  """A KeyError is no fault of the user's input, so it is raised again."""

  def fail(*arguments):
    raise KeyError("a fault")

  monkeypatch.setattr(split_text, "split_text", fail)
  with pytest.raises(KeyError, match="a fault"):
    execute(["split-text", "--input=a", "--output=b"])


def test_a_closed_pipe_prints_no_traceback():
  reading_end, writing_end = os.pipe()
  os.close(reading_end)
  process = subprocess.run(
    [sys.executable, "-m", "bert_jax", "config", "configs/quickstart.py"],
    stdout=writing_end,
    stderr=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  )
  os.close(writing_end)
  assert process.returncode == 1
  message = "error: standard output cannot be written: Broken pipe.\n"
  assert without_progress(process.stderr) == message


def test_running_another_module_is_an_error():
  process = run_module("bert_jax.training.train", "--config", "x")
  assert process.returncode == 1 and not process.stdout
  assert process.stderr.startswith(
    "error: bert_jax.training.train is not a comm"
  )
  assert len(process.stderr.splitlines()) == 1


def test_a_verb_imports_no_other_verb():
  code = (
    "import sys\n"
    "from bert_jax.cli.main import execute\n"
    "try:\n  execute(['split-text', '--help'])\nexcept SystemExit: pass\n"
    "print(sorted(m for m in sys.modules if m.startswith('bert_jax.cli.')))\n"
    "print('jax' in sys.modules)\n"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  *_, modules_line, jax_line = process.stdout.splitlines()
  module_names = ("errors", "flags", "main", "split_text")
  assert modules_line == str([f"bert_jax.cli.{name}" for name in module_names])
  assert jax_line == "False"


@pytest.mark.parametrize(
  "error, verb, sentence",
  [
    (OSError(28, "Full", "f"), "split-text", "f: Full; nothing was written."),
    (OSError(28, "Full"), "split-text", "o: Full; nothing was written."),
    (
      OSError(28, "Full", "f"),
      "prepare",
      "f: Full. Once this is corrected, the same command continues where it"
      " stopped.",
    ),
    (MemoryError(), "split-text", "too little memory; nothing was written."),
    (OutOfMemory("Lower it."), "split-text", "Lower it."),
    (DamagedFile("f is damaged."), "split-text", "f is damaged."),
    (FloatingPointError("loss is nan."), "split-text", "loss is nan."),
  ],
)
def test_errors_of_certain_classes_become_one_sentence(
  monkeypatch, error, verb, sentence
):
  def fail(*arguments, **options):
    raise error

  monkeypatch.setattr(split_text, "split_text", fail)
  monkeypatch.setattr(prepare, "prepare", fail)
  vocab_flags = ["--vocab=v"] if verb == "prepare" else []
  with pytest.raises(SystemExit) as exit_info:
    execute([verb, "--input=i", "--output=o", *vocab_flags])
  assert exit_info.value.code == f"error: {sentence}"


@pytest.mark.parametrize(
  "verb, sentence",
  [
    ("split-text", "stopped; nothing was written."),
    ("prepare", "stopped; the same command continues where it stopped."),
  ],
)
def test_a_stopped_command_says_how_to_continue(monkeypatch, verb, sentence):
  def fail(*arguments, **options):
    raise KeyboardInterrupt

  monkeypatch.setattr(split_text, "split_text", fail)
  monkeypatch.setattr(prepare, "prepare", fail)
  vocab_flags = ["--vocab=v"] if verb == "prepare" else []
  with pytest.raises(CommandStopped) as exit_info:
    execute([verb, "--input=i", "--output=o", *vocab_flags])
  assert exit_info.value.code == sentence


def output_for_error_of_thread(error):
  """Returns what stderr holds after a thread has raised an error."""
  code = (
    "import sys, threading\n"
    "from bert_jax.cli import errors\n"
    "threading.excepthook = errors.report_thread\n"
    f"def fail():\n  raise {error}\n"
    "thread = threading.Thread(target=fail, name='saver')\n"
    "thread.start()\nthread.join()\n"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
  )
  assert not process.stdout
  return process.stderr


def test_every_exception_of_a_thread_is_printed():
  line = output_for_error_of_thread("OSError(28, 'Full', 'f')")
  assert line == "note: thread saver: [Errno 28] Full: 'f'\n"
  trace = output_for_error_of_thread("KeyError('a fault')")
  assert "Traceback" in trace and "KeyError: 'a fault'" in trace


# After a failed read of a checkpoint, unfinished reads call a closed event
# loop. Only the first of them prints a line. Other errors keep their traceback.
def test_a_callback_of_a_closed_loop_prints_only_one_line(
  capsys,
):
  messages.note_once.cache_clear()
  loop = asyncio.new_event_loop()
  loop.close()
  with pytest.raises(RuntimeError) as late_error:
    loop.call_soon_threadsafe(print)
  errors.report_uncaught(late_error.type, late_error.value, late_error.tb)
  line = capsys.readouterr().err
  assert line == "note: in a callback: Event loop is closed\n"
  unraisable = types.SimpleNamespace(
    exc_value=late_error.value, err_msg=None, object=loop
  )
  errors.report_unraisable(unraisable)
  assert not capsys.readouterr().err
  with pytest.raises(RuntimeError) as other_error:
    raise RuntimeError("Event loop is closed")
  errors.report_uncaught(other_error.type, other_error.value, other_error.tb)
  assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("module_name", ["orbax.checkpoint.reads", "another"])
def test_later_failed_reads_of_a_checkpoint_print_one_line(module_name, capsys):
  messages.note_once.cache_clear()
  namespace = {"__name__": module_name}
  exec("async def read():\n  raise Exception('60 lines')", namespace)
  for _ in range(2):
    coroutine = namespace["read"]()
    with pytest.raises(Exception, match="60 lines") as failure:
      coroutine.send(None)
    # An error outside orbax goes to sys.__unraisablehook__. The hook raises
    # TypeError, because `unraisable` is no object of Python's class.
    unraisable = types.SimpleNamespace(
      exc_value=failure.value, object=coroutine
    )
    is_orbax = module_name.startswith("orbax.")
    with contextlib.nullcontext() if is_orbax else pytest.raises(TypeError):
      errors.report_unraisable(unraisable)
  line = "note: orbax could not read other arrays of the checkpoint either.\n"
  assert capsys.readouterr().err == (line if is_orbax else "")


def test_the_installed_script_runs_bert_jax():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert project["scripts"] == {"bert_jax": "bert_jax.cli.main:main"}
  process = run_module("bert_jax", "--help")
  assert process.returncode == 0 and process.stdout == overview() + "\n"


# Importing the trainer takes seconds, so a `Watch` says what is going on.
def test_train_watches_its_imports(monkeypatch, tmp_path):
  watched_actions, verb_module = [], load_verb("train")

  def record_watch(action, write):
    watched_actions.append(action)
    return contextlib.nullcontext()

  monkeypatch.setattr(verb_module, "Watch", record_watch)
  monkeypatch.setattr(train, "run", lambda config, workdir: None)
  execute(["train", "--config", "bert:tiny", "--workdir", str(tmp_path)])
  assert watched_actions == ["importing the trainer"]
