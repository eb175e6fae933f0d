"""Defines functions that tests run in child processes.

This module imports little, so that the processes start fast.
"""

import os
import signal


def yield_two_values():
  yield 1
  yield 2


def raise_value_error():
  yield 1
  raise ValueError("a sentence")


def end_by_signal():
  yield 1
  os.kill(os.getpid(), signal.SIGSEGV)


def end_by_exit():
  yield 1
  os._exit(3)
