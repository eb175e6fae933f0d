"""Weights: published formats in and out, converted folders, checkpoints.

This room imports `devices`, `text`, `models` and the package's root. It also
imports jax, flax, orbax, etils, numpy, safetensors and tokenizers. The packages
torch, tensorflow, h5py and huggingface_hub are imported only inside functions.

Start with `load.open_model`, which opens a model from any path, and with
`model_folder.Weights`, which every reader returns.

* `load.py`: opens a model from any path: `open_model`.
* `model_folder.py`: reads and writes converted folders.
* `runs.py`: reads a run's checkpoint as a model.
* `shipped.py`: reads the models that the package ships.
* `run_config.py`: compares a run's config.json with a checkpoint's config.
* `checkpoint.py`: saves, restores and checks the checkpoints of a run.
* `convert.py`: `bert_jax convert`: published formats in and out.
* `mapping.py`: rules that turn the arrays of a file into parameters, and back.
* `hf.py`: reads and writes Hugging Face folders.
* `hf_config.py`, `hf_files.py`, `hf_names.py`, `hf_tasks.py`: Hugging Face's
  config.json, files of arrays, names of arrays, and classes.
* `tf1.py`, `tf1_names.py`: TensorFlow 1 checkpoints of BERT, ALBERT, ELECTRA.
* `bilm.py`: ELMo's weights as bilm-tf and AllenNLP publish them.
* `generator_discriminator.py`: joins ELECTRA's two towers, and splits them.
"""
