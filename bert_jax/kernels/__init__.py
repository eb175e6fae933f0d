"""Kernels for GPUs and TPUs, products of 8-bit floats, and the dropout hash.

Each kernel has a plain counterpart in `models/`, and tests compare the two.
`fused.choose_implementation` chooses the kernel or the counterpart, by the
platform and the dtype. The room imports jax, flax, jaxtyping and numpy, and no
room of the package. Start with `fused.py`.

A GPU runs many programs of a kernel in parallel. The number of a program tells
on which block of the arrays the program works.

  fused.py: functions that all kernels share. They make random bits for dropout,
    run a kernel on each device's shard, and choose an implementation.
  fused_norm.py: bias, dropout, residual and LayerNorm in one kernel.
  fused_activation.py: bias and activation of a dense layer.
  fused_attention.py: attention on GPUs. It uses these three files:
    attention_kernels.py: the work of one program, for each kernel.
    attention_program.py: loads, stores, masks and dropout of a program.
    attention_blocks.py: which blocks of keys and queries see each other.
  tpu_attention.py: attention on TPUs.
  fp8.py: products of 8-bit floats.
"""
