"""Devices and hosts: meshes, sharding, processes that run as one, compiling.

Imports no other room, only the package's root; of packages jax and numpy.

Start with `sharding.py`: how a mesh is made, and what lies where on it.

* `sharding.py`: meshes, the sharding of parameters and batches, `jit`.
* `hosts.py`: several processes as one run; stop signals.
* `compile_ahead.py`: compiles programs in threads before their batches come.
* `hlo.py`: reads a compiled program: loops, collectives, bytes.
* `isolated.py`: runs a function in a process of its own, which may crash.
* `xla_errors.py`: tells errors of XLA apart: too little memory and others.
"""
