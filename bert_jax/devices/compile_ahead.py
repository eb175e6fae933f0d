"""Compiles programs in the background, before batches of their shapes come."""

import concurrent.futures
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
from jax.sharding import Mesh

from bert_jax.devices import hosts, sharding

# All processes compile the same programs in the same order, so a program has
# the same number in all processes.
_PROGRAM_NUMBERS = itertools.count()
# Compiling takes minutes at most. If a process is lost, `hosts` ends the
# remaining processes sooner.
_COMPILE_TIMEOUT_SECONDS = 3600


@contextlib.contextmanager
def compile_threads() -> Iterator[concurrent.futures.Executor]:
  """Makes threads that compile programs at the same time.

  The threads do not wait for each other, because the compiler releases Python's
  lock. At the end, compilations that have not begun are cancelled.
  """
  executor = concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
  try:
    yield executor
  finally:
    executor.shutdown(wait=False, cancel_futures=True)


def begin_compilation(
  executor: concurrent.futures.Executor,
  function: Callable[..., Any],
  mesh: Mesh,
  *shapes: Any,
) -> concurrent.futures.Future[Callable[..., Any]] | None:
  """Begins to compile a jitted function for arguments of given shapes.

  Args:
    executor: the threads from `compile_threads`.
    function: a function from `jax.jit` or `sharding.jit`.
    mesh: the mesh of the arguments.
    *shapes: the shapes of the arguments, with shardings.

  Returns:
    A future of the program. It is None in a run of several processes, which
    must all compile their programs in the same order.
  """
  if jax.process_count() > 1:
    return None

  def compile_program() -> Callable[..., Any]:
    # A mesh is in use only in the thread that entered it.
    with sharding.use_mesh(mesh):
      return cast(sharding.JittedFunction, function).lower(*shapes).compile()

  return executor.submit(compile_program)


class CompiledAhead:
  """Calls a jitted function of a batch, with one program for each batch shape.

  A shape that was not compiled ahead is compiled when its first batch comes.
  """

  def __init__(
    self, function: Callable[..., Any], batch_index: int, mesh: Mesh
  ):
    """Compiles nothing yet.

    Args:
      function: a function from `jax.jit` or `sharding.jit`.
      batch_index: the index of the batch among the function's arguments.
      mesh: the mesh of the arguments.
    """
    self._function = cast(sharding.JittedFunction, function)
    self._mesh = mesh
    self._batch_index = batch_index
    self._programs: dict[
      tuple[int, ...], concurrent.futures.Future[Callable[..., Any]]
    ] = {}

  def begin_compilation(
    self, executor: concurrent.futures.Executor, *arguments: Any
  ) -> None:
    """Begins to compile for a batch shape.

    In a run of several processes this method does nothing.

    Args:
      executor: the threads from `compile_threads`.
      *arguments: the arguments of a call, but with shapes in place of the
        batch.
    """
    batch_shape = arguments[self._batch_index]["sequence_ids"].shape
    if batch_shape not in self._programs:
      other_arguments = list(arguments)
      unsharded_shapes = other_arguments.pop(self._batch_index)
      shapes = jax.tree.map(shape_of, other_arguments)
      sharded_shapes = sharding.global_batch_shapes(
        self._mesh, unsharded_shapes
      )
      shapes.insert(self._batch_index, sharded_shapes)
      future = begin_compilation(executor, self._function, self._mesh, *shapes)
      if future:
        self._programs[batch_shape] = future

  def __call__(self, *arguments: Any) -> Any:
    """Calls the program for the batch's shape, or else the jitted function."""
    batch_shape = arguments[self._batch_index]["sequence_ids"].shape
    if batch_shape not in self._programs and jax.process_count() > 1:
      self._programs[batch_shape] = self._compile_with_others(arguments)
    if batch_shape in self._programs:
      return self._programs[batch_shape].result()(*arguments)
    return self._function(*arguments)

  def _compile_with_others(
    self, arguments: tuple[Any, ...]
  ) -> concurrent.futures.Future[Callable[..., Any]]:
    """Compiles a program, and waits until every process has compiled it.

    When a program runs for the first time, the processes connect to each other.
    On CPUs, jax gives up if one process begins 30 seconds after another. So all
    processes begin after the slowest process has compiled the program.
    """
    future: concurrent.futures.Future[Callable[..., Any]]
    future = concurrent.futures.Future()
    future.set_result(self._function.lower(*arguments).compile())
    hosts.wait_for_all(
      f"program {next(_PROGRAM_NUMBERS)}", _COMPILE_TIMEOUT_SECONDS
    )
    return future


def shape_of(x: jax.Array) -> jax.ShapeDtypeStruct:
  """Returns the shape, dtype and sharding of an argument of a program."""
  # The type of random keys has no attribute `weak_type`.
  weak_type = getattr(x.aval, "weak_type", False)
  return jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=x.sharding, weak_type=weak_type
  )
