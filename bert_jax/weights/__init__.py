"""Weights: published formats in and out, converted folders, checkpoints.

Imports `devices`, `text`, `models` and the package's root; of packages jax,
flax, orbax, numpy, safetensors and tokenizers (torch, tensorflow, h5py and
huggingface_hub in functions).

Start with `load.open_model`, which opens a model from any path, and
`model_folder.Weights`, the form that every reader returns.

* `load.py`: opens a model from whatever path: `open_model`, `bert_jax.load`.
* `model_folder.py`: the folder of a converted model, its module, its arrays.
* `runs.py`: a run's checkpoint as a model.
* `run_config.py`: which keys of a run's config define its model.
* `checkpoint.py`: checkpoints of a run: saved, restored, checked.
* `convert.py`: `bert_jax convert`, from published formats and to them.
* `mapping.py`: rules that rename, reshape and split arrays, both ways.
* `hf.py`: folders of Hugging Face, read and written.
* `hf_config.py`, `hf_files.py`, `hf_names.py`, `hf_tasks.py`: their
  config.json, files of arrays, names of arrays, and classes.
* `tf1.py`, `tf1_names.py`: TensorFlow 1 checkpoints of BERT, ALBERT, ELECTRA.
* `bilm.py`: ELMo's weights as bilm-tf and AllenNLP publish them.
* `generator_discriminator.py`: ELECTRA's two towers, joined and taken apart.
"""
