"""Text to ids and back: tokenizers of every kind, opened, written and trained.

This room imports no room of the package, only `files.py` and `messages.py` of
the package's root. Its packages are etils, numpy and tokenizers, and
sentencepiece in functions.

Start with `vocabulary.py`, the class that all kinds share, and
`open_vocabulary.load`, which opens a tokenizer from any path.

* `vocabulary.py`: `Vocabulary`, text to ids, offsets and back; special tokens.
* `wordpiece.py`: BERT's WordPiece, by Hugging Face's or the original rules.
* `bpe.py`: byte-level BPE (GPT-2, RoBERTa) and GPT-1's BPE.
* `unigram.py`: SentencePiece models (ALBERT) and their file.
* `fairseq_pieces.py`: SentencePiece models with fairseq's ids (XLM-R).
* `words.py`: whole words (ELMo).
* `characters.py`: words as the bytes of their characters (ELMo's input).
* `tokenizer_json.py`: Hugging Face's `tokenizer.json` of any kind.
* `cleaning.py`: how text is cleaned: capitals, accents, Unicode.
* `added_tokens.py`: tokens added at the end of a vocabulary.
* `token_files.py`: a user's file of tokens to add, `--add-tokens`.
* `file_contents.py`: decodes and parses files that are already in memory.
* `open_vocabulary.py`: opens and writes the files of a tokenizer.
* `model_tokenizer.py`: the tokenizer that comes with a converted model.
* `train_vocabulary.py`: learns a vocabulary from texts.
"""
