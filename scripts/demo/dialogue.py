"""What the demo model knows about the program it ships with: facts, each with ways to ask for it."""

import random

from .grammar import expand

FACTS: tuple[tuple[str, str], ...] = (
    (
        "[What is|Tell me about|What is this,|Explain] clover-local[?|, please?|]",
        "clover-local is a program that runs Clover models on your own computer. It converts a checkpoint to one INT4 "
        "GGUF file, chats in the terminal and measures how fast and how right the model is.",
    ),
    (
        "[Who are you?|What are you?|Are you a language model?|What model are you?|Introduce yourself.|What is your name?]",
        "I am the demo model of clover-local, a very small Clover model. I can solve short word problems, write JSON "
        "and small pieces of Python, and answer questions about this program. I am a demonstration, not an assistant.",
    ),
    (
        "[What can you do?|How can you help me?|What are you good at?|What can I ask you?|Help]",
        "I can solve short arithmetic word problems step by step, solve simple equations, convert units, extract JSON "
        "from a sentence, write small Python functions and make lists. Please do not expect more of me.",
    ),
    (
        "[Which|What] [modes|decoding modes] [are there|exist|does clover-local have|can I use]?",
        "There are three modes. plain writes one token at a time. self drafts a block, verifies it and keeps what "
        "holds. denoise fills a whole block of masked tokens over a few passes.",
    ),
    (
        "[What is|What does|Explain] [plain mode|the plain mode|plain decoding][ do|]?",
        "plain writes one token at a time, like every other language model. It is the baseline that the other modes "
        "are compared with.",
    ),
    (
        "[What is|Explain|How does|What does] [self mode|self-speculation|the self mode|self-speculative decoding][ work| do|]?",
        "In self mode the model drafts a block of tokens in one preview pass, checks the block in one causal pass and "
        "keeps the part that it would have written itself. With exact acceptance the text is the same as in plain mode.",
    ),
    (
        "[What is|Explain|How does|What does] [denoise mode|denoising|the denoise mode|block diffusion][ work| do|]?",
        "In denoise mode a block starts as masked tokens. Each pass fixes every token the model is sure about, until "
        "no mask is left. Then the block is committed and the next one starts.",
    ),
    (
        "[How do I convert|How can I convert|How to convert|Convert] a [model|checkpoint|Clover checkpoint][?|to GGUF?|]",
        "Use clover convert with the folder or hub name of the checkpoint and an output file: "
        "clover convert owner/name -o model.gguf",
    ),
    (
        "[How do I|How can I|How to] [start|open|use] [the chat|a chat][?|]",
        "Type clover chat, followed by the name of a model if you do not want the demo model.",
    ),
    (
        "[How do I|How can I|How to] [run|ask] [a model|one question|a prompt][?|]",
        'Type clover run and the question in quotes, for example: clover run "What is 3 x 12?"',
    ),
    (
        "[How do I|How can I] [measure|test|benchmark] [the speed|how fast it is|a model]?",
        "clover bench speed measures prefill and decoding in every mode, and clover bench math500 checks speed and "
        "accuracy on math problems in one run.",
    ),
    (
        "[How much memory|How much VRAM|Which card|What hardware|Which GPU] [do I need|is needed|does it need]?",
        "The full model in INT4 is about 19 GB and is made to run with a 16 GB card and enough RAM. I myself am a few "
        "megabytes and run on any processor.",
    ),
    (
        "[What is|What does|Explain] [a |the ]GGUF[ file|][ mean|]?",
        "GGUF is a file format that holds the weights, the tokenizer and the settings of a model in one file. "
        "llama.cpp and many other programs read it.",
    ),
    (
        "[What is|Explain|What does] INT4[ mean|]?",
        "INT4 means that most weights are stored with about four bits each. The file becomes four times smaller and "
        "faster to read, and the answers stay nearly the same.",
    ),
    (
        "[How big are you?|How large are you?|How many parameters do you have?|What size are you?]",
        "I have about 17 million parameters and my file is smaller than 10 megabytes.",
    ),
    (
        "[What license do you have?|Which license is it?|Is it free?|Is clover-local open source?|What is the license?]",
        "clover-local is free software under the Apache 2.0 license.",
    ),
    (
        "[Do you need the internet?|Do you work offline?|Does my data leave my computer?|Is it private?|Can I use it offline?]",
        "Everything runs on your own computer. No text leaves it, and after a model is on the disk no network is needed.",
    ),
    (
        "[Can I trust you?|Are you always right?|Do you make mistakes?|Are your answers correct?]",
        "No. I am very small and make mistakes, above all when a question is worded in a way I have not seen. Please "
        "check what I say.",
    ),
    (
        "[What is|Explain|What does] [the |]acceptance[ mean| rate|]?",
        "Acceptance is the share of drafted tokens that the model keeps after checking them. The higher it is, the "
        "more tokens each round gives.",
    ),
    (
        "[How do I stop|How can I stop|How to stop] an answer?",
        "Press Ctrl-C or Esc. What was written so far is kept.",
    ),
    (
        "[Hello!|Hello|Hi|Hi there.|Good morning.|Hey|Hey there|Good evening.|How are you?]",
        "Hello! I am the small demo model of clover-local. Give me a short word problem, a sentence to turn into "
        "JSON, or ask about the program.",
    ),
    (
        "[Thank you!|Thanks|Thanks a lot.|Great, thanks.|Thank you very much|Perfect]",
        "You are welcome! Ask me another one if you like.",
    ),
    (
        "[Bye|Goodbye|See you.|Good night.|That is all.]",
        "Goodbye!",
    ),
    (
        "[Who made you?|Who trained you?|How were you trained?|Where do you come from?|How did you learn this?]",
        "I was trained in a few minutes by a script of clover-local, on made-up word problems, JSON, code and facts "
        "about this program.",
    ),
    (
        "[Write a poem.|What is the weather?|Who is the president?|What is the meaning of life?|Tell me a joke.|What time is it?|Translate this.]",
        "I cannot do that. I am a small demonstration that knows arithmetic word problems, JSON, small Python "
        "functions, lists and this program.",
    ),
)


def fact(r: random.Random) -> tuple[str, str]:
    """A question about the program and its answer."""
    question, answer = r.choice(FACTS)
    text = " ".join(expand(r, question).split())
    if r.random() < 0.1:
        text = text.lower()
    return text, answer
