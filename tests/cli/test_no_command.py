"""`python -m` of a module that is no command says so, and exits with 1."""

import pathlib
import subprocess
import sys

import pytest

import bert_jax

ROOT = pathlib.Path(bert_jax.__file__).parent


def modules():
  for path in sorted(ROOT.rglob("*.py")):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    if path.stem not in ("__init__", "__main__"):
      yield ".".join(parts), '__name__ == "__main__"' in path.read_text()


def check(monkeypatch, *argv):
  monkeypatch.setattr(sys, "argv", ["-m"])
  monkeypatch.setattr(sys, "orig_argv", ["python", "-m", *argv])
  bert_jax._check_command()


def test_every_module_runs_or_says_that_it_does_not(monkeypatch):
  counts = {True: 0, False: 0}
  for name, runs in modules():
    counts[runs] += 1
    if runs:
      check(monkeypatch, name, "--flag")
    else:
      with pytest.raises(SystemExit, match=f"error: {name} is a module, no co"):
        check(monkeypatch, name, "--flag")
  assert counts[True] > 14 and counts[False] > 100


def test_others_are_left_alone(monkeypatch):
  for argv in (["bert_jax.nothing"], ["pytest"], ["bert_jax"], ["train"]):
    check(monkeypatch, *argv)


def test_the_command_line():
  done = subprocess.run(
    [sys.executable, "-m", "bert_jax.training.evaluate", "--model", "x"],
    capture_output=True,
    text=True,
    cwd=ROOT.parent,
  )
  assert done.returncode == 1 and not done.stdout
  assert "python -m bert_jax.cli.evaluate_task" in done.stderr
  assert len(done.stderr.splitlines()) == 1
