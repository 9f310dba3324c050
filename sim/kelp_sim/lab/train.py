# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Trains a small Llama-format model on text found on any machine, for the recorder: the Python
standard library's sources and the manual pages.

``python -m kelp_sim.lab.train -o DIR [--minutes 120 | --steps N] [--seed 1] [--layers 6] [--heads
8] [--kv-heads 2] [--hidden 256] [--context 1024]``

On a GPU when there is one. Stops at the time given, or after so many steps, which is repeatable on
one machine. DIR then holds config.json, model.safetensors (fp16) and tokenizer.json, which
``AutoModelForCausalLM.from_pretrained`` loads; the model is written every ten minutes too. Needs
torch, transformers and tokenizers (`.venv.hf`). Files named with ``--hold-out`` are not trained on.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import random
import sys
import sysconfig
import time
from pathlib import Path

__all__ = ["main", "texts"]

#: Minutes between two writes of a model in training, and texts tokenised at a time: an encoding
#: takes a hundred times the memory of its numbers.
_WRITE, _TEXTS = 10, 200


def texts(hold_out: set[str]) -> list[str]:
    """Every standard-library source and manual page, without those whose file name is in
    ``hold_out``; in a fixed order."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    found = [p for p in found if "site-packages" not in p.parts and "dist-packages" not in p.parts]
    pages = sorted(Path("/usr/share/man").glob("man[1-8]/*"))
    kept = []
    for path in found + pages:
        if path.name in hold_out:
            continue
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, gzip.BadGzipFile):
            continue
        text = data.decode("utf-8", errors="ignore")
        if len(text) > 500:
            kept.append(text)
    return kept


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        _check(chosen)
        train(chosen)
    except (ValueError, ModuleNotFoundError) as error:
        missing = (
            f"needs the package {error.name!r}: make test-engines ENGINES=hf, then use "
            + ".venv.hf/bin/python"
            if isinstance(error, ModuleNotFoundError)
            else error
        )
        print(f"train: {missing}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_sim.lab.train", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--steps", type=int, default=None, help="instead of a time", metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    for name, default in (
        ("layers", 6),
        ("heads", 8),
        ("kv-heads", 2),
        ("hidden", 256),
        ("vocabulary", 4096),
        ("context", 1024),
        ("batch", 8),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="train in bf16 on a CPU too: quicker where it has instructions for it",
    )
    parser.add_argument("--hold-out", nargs="*", default=[], metavar="NAME")
    return parser


def _check(chosen: argparse.Namespace) -> None:
    if chosen.hidden % chosen.heads or chosen.heads % chosen.kv_heads:
        raise ValueError(
            f"hidden {chosen.hidden}, heads {chosen.heads}, KV heads "
            + f"{chosen.kv_heads}: each must divide the one before"
        )
    if chosen.minutes <= 0 or (chosen.steps is not None and chosen.steps < 1):
        raise ValueError(f"minutes {chosen.minutes:g}, steps {chosen.steps}: legal: above 0")


def train(chosen: argparse.Namespace) -> None:
    """Tokenizer, then model, into ``chosen.output``."""
    import torch

    random.seed(chosen.seed)
    torch.manual_seed(chosen.seed)
    stream = _tokenised(chosen)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _untrained(chosen).to(device)
    steps = _descend(model, stream, chosen, device)
    model.to(torch.float16).save_pretrained(chosen.output)
    print(
        f"{chosen.output}: {sum(p.numel() for p in model.parameters()):,} parameters after "
        + f"{steps} steps of {chosen.batch * chosen.context:,} tokens"
    )


def _tokenised(chosen: argparse.Namespace):
    """int32: every text one after another, in the tokens of a tokenizer trained on some of them and
    written."""
    import numpy as np
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    corpus = texts(set(chosen.hold_out))
    random.shuffle(corpus)
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        corpus[:1500], vocab_size=chosen.vocabulary, special_tokens=["<|end|>"], show_progress=False
    )
    chosen.output.mkdir(parents=True, exist_ok=True)
    bpe.save(str(chosen.output / "tokenizer.json"))
    PreTrainedTokenizerFast(
        tokenizer_file=str(chosen.output / "tokenizer.json"), eos_token="<|end|>"
    ).save_pretrained(chosen.output)
    stream = np.concatenate(
        [
            np.array([*e.ids, 0], np.int32)
            for at in range(0, len(corpus), _TEXTS)
            for e in bpe.encode_batch(corpus[at : at + _TEXTS])
        ]
    )
    print(f"{len(corpus)} texts, {len(stream):,} tokens", flush=True)
    return stream


def _untrained(chosen: argparse.Namespace):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=chosen.vocabulary,
            hidden_size=chosen.hidden,
            intermediate_size=chosen.hidden * 8 // 3 // 32 * 32,
            num_hidden_layers=chosen.layers,
            num_attention_heads=chosen.heads,
            num_key_value_heads=chosen.kv_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _descend(model, stream, chosen: argparse.Namespace, device: str) -> int:
    """Train until the time or the steps are over; how many steps there were."""
    import numpy as np
    import torch

    optimiser = torch.optim.AdamW(
        model.parameters(), lr=chosen.rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    began, last, written, step = time.monotonic(), 0.0, 0.0, 0
    while True:
        spent = (time.monotonic() - began) / 60
        share = spent / chosen.minutes if chosen.steps is None else step / chosen.steps
        if share >= 1:
            break
        # A short warm-up, then down to a tenth along a cosine of what is done.
        rate = chosen.rate * min(1, (step + 1) / 100) * (0.1 + 0.45 * (1 + np.cos(np.pi * share)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        at = [random.randrange(len(stream) - chosen.context) for _ in range(chosen.batch)]
        batch = torch.as_tensor(
            np.stack([stream[a : a + chosen.context] for a in at]), device=device, dtype=torch.long
        )
        with torch.autocast(device, torch.bfloat16, enabled=chosen.bf16 or device == "cuda"):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        if spent - last > 0.25 or step == 1:
            last = spent
            print(
                f"{spent:6.1f} minutes, {share:.0%}, step {step}, loss {loss.item():.3f}",
                flush=True,
            )
        if spent - written > _WRITE:
            written = spent
            copy.deepcopy(model).to(torch.float16).save_pretrained(chosen.output)
    return step


if __name__ == "__main__":
    sys.exit(main())
