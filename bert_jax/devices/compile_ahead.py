"""Programs compiled in the background, before batches of their shapes come."""

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.devices import sharding


@contextlib.contextmanager
def threads() -> Iterator[concurrent.futures.Executor]:
  """Threads that compile: the compiler runs outside of Python's lock.

  At the end what has not begun never does.
  """
  executor = concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
  try:
    yield executor
  finally:
    executor.shutdown(wait=False, cancel_futures=True)


def begin(
  pool: concurrent.futures.Executor,
  function: Callable[..., Any],
  mesh: Mesh,
  *shapes: Any,
) -> concurrent.futures.Future[Callable[..., Any]] | None:
  """Begins to compile a program of a jitted function.

  Args:
    pool: the pool that `threads` made.
    function: a function from `jax.jit` or `sharding.jit`.
    mesh: the mesh of the arguments.
    shapes: the shapes of the arguments, with shardings.

  Returns:
    The program to come; None where there are several processes: theirs must be
    made in one order.
  """
  if jax.process_count() > 1:
    return None

  def make():
    with sharding.use_mesh(mesh):  # Each thread has its own.
      return function.lower(*shapes).compile()

  return pool.submit(make)


class Ahead:
  """A jitted function of a batch, a program for each length of its rows.

  A length that was not prepared is compiled when it comes.
  """

  def __init__(self, function: Callable[..., Any], place: int, mesh: Mesh):
    """Compiles nothing yet.

    Args:
      function: a function from `jax.jit` or `sharding.jit`.
      place: the position of the batch among its arguments.
      mesh: the mesh of the arguments.
    """
    self._function, self._place, self._mesh = function, place, mesh
    self._programs: dict[
      tuple[int, ...], concurrent.futures.Future[Callable[..., Any]]
    ] = {}

  def prepare(self, pool: concurrent.futures.Executor, *arguments: Any) -> None:
    """Begins to compile for arguments, the batch's given as shapes.

    Where there are several processes nothing is done; see `begin`.
    """
    shape = arguments[self._place]["sequence_ids"].shape
    if shape not in self._programs:
      shapes = list(arguments)
      batch = shapes.pop(self._place)
      shapes = jax.tree.map(shape_of, shapes)
      shapes.insert(self._place, sharding.global_shapes(self._mesh, batch))
      begun = begin(pool, self._function, self._mesh, *shapes)
      if begun:
        self._programs[shape] = begun

  def __call__(self, *arguments: Any) -> Any:
    shape = arguments[self._place]["sequence_ids"].shape
    if shape in self._programs:
      return self._programs[shape].result()(*arguments)
    return self._function(*arguments)


def shape_of(x: jax.Array) -> jax.ShapeDtypeStruct:
  """Returns an argument's shape, dtype and sharding, to compile for it."""
  weak = getattr(x.aval, "weak_type", False)  # Random keys have none.
  return jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=x.sharding, weak_type=weak
  )
