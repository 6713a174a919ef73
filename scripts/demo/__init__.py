"""Everything behind scripts/train_demo.py: corpus, tokenizer, parallel training form, objective, evaluation."""
