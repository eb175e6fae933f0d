"""Devices and hosts: meshes, sharding, runs of several processes, compiling.

The room imports only files of the package's root, and the packages jax, flax
and numpy. Start with `sharding.py`: how a mesh is made, and which device holds
which part of an array.

* `sharding.py`: meshes, the sharding of parameters and batches, `jit`.
* `update_sharding.py`: which device updates which part of a parameter.
* `hosts.py`: several processes as one run; stop signals.
* `compile_ahead.py`: compiles programs in threads before their batches come.
* `hlo.py`: reads a compiled program: loops, collectives, bytes.
* `tpu_cycles.py`: sums the TPU compiler's estimate of a program's time.
* `kernel_operations.py`: counts what Pallas kernels compute and move.
* `isolated.py`: runs a function in a separate process, which may crash.
* `xla_errors.py`: recognises errors of XLA, for example too little memory.
"""
