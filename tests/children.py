"""Functions for child processes, which import this module.

It imports little, so that they start fast.
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
