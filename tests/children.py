"""Defines functions that tests run in child processes.

This module imports little, so that the processes start fast.
"""

import os
import signal


def two():
  yield 1
  yield 2


def wrong():
  yield 1
  raise ValueError("a sentence")


def killed():
  yield 1
  os.kill(os.getpid(), signal.SIGSEGV)


def leaving():
  yield 1
  os._exit(3)
