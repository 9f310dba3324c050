# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What each stored format costs a model: teacher-forced perplexity with keys and values as the
device gives them back.

    .venv.hf/bin/python examples/perplexity.py --model PATH [--texts 4] [--tokens 1024] [FORMAT …]
    .venv.hf/bin/python examples/perplexity.py --model smollm2 --texts 2 raw16 int8 int8/int4

A FORMAT is raw16, fp8_e4m3, fp8_e5m2, int8, int4, or K/V apart as int8/int4. The texts are modules
of Python's standard library, each from its beginning; for SmolLM2 and any other .gguf file those
that `kelp quality` takes (docs/quality.md).
"""

import argparse
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, model_shape
from kelp_sim.lab.models import load, smollm2
from kelp_sim.quality.perplexity import difference
from kelp_sim.quality.real import excerpts


def texts(tokenizer, count, tokens):
    """The first `count` modules, in alphabetical order, that are long enough; int64[1, tokens]
    each. ValueError where there are fewer."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        ids = tokenizer(path.read_text(encoding="utf-8", errors="replace"), return_tensors="pt")[
            "input_ids"
        ]
        if ids.shape[1] >= tokens:
            found.append(ids[:, :tokens])
        if len(found) == count:
            return found
    raise ValueError(f"{count} texts of {tokens} tokens are refused; there are {len(found)}")


def model_and_texts(name, count, tokens):
    """A model in fp16, and its texts: int64[1, tokens] each. ValueError of one line where there is
    no such model or not enough text."""
    name = str(smollm2() if name == "smollm2" else name)
    model, tokenizer = load(name)
    limit = model.config.max_position_embeddings
    if tokens > limit:
        raise ValueError(f"--tokens {tokens} is refused; the model's positions end at {limit}")
    found = (
        [torch.as_tensor(ids)[None] for _, ids in excerpts(tokenizer, count, tokens)]
        if name.endswith(".gguf")
        else texts(tokenizer, count, tokens)
    )
    return model.to(torch.float16), found


def stored_as(label):
    """The formats that `K/V`, or one for both, names; ValueError for what is none."""
    k, _, v = label.partition("/")
    return cxl_kv.LayerFormats(k=k, v=v or k)


def losses(model, batch, cache_of):
    """Sum of −log p over each text: float64[texts]."""
    found = []
    for ids in batch:
        ids = ids.to(model.device)
        cache = cache_of()
        with torch.no_grad():
            logits = model(input_ids=ids, past_key_values=cache).logits.float()
        nats = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
        found.append(nats.item())
        if isinstance(cache, EndpointCache):
            cache.close()
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "formats", nargs="*", default=["raw16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int8/int4"]
    )
    parser.add_argument(
        "--model", required=True, help="smollm2, a .gguf file, or a folder of a causal model"
    )
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()

    try:
        if options.texts < 1 or options.tokens < 2:
            raise ValueError(
                f"{options.texts} texts of {options.tokens} tokens are refused; legal: from 1 on, "
                + "from 2 on"
            )
        formats = {label: stored_as(label) for label in options.formats}
        model, batch = model_and_texts(options.model, options.texts, options.tokens)
    except ValueError as error:
        sys.exit(str(error))
    base = losses(model, batch, lambda: DynamicCache(config=model.config))
    predicted = np.full(len(batch), options.tokens - 1)
    perplexity = np.exp(base.sum() / predicted.sum())
    print(
        f"{len(batch)} texts of {options.tokens} tokens; "
        + f"DynamicCache: perplexity {perplexity:.4f}"
    )
    shape = model_shape(model.config, torch.float16)
    half_lines = max(16, 1 << (shape.token_lines * 16 - 1).bit_length())
    pages = max(8, 1 << (-(-options.tokens // 16) - 1).bit_length())
    frames = ",".join([str(shape.queues * pages + 8)] * 4)
    url = f"golden:trace?sessions=1&queues={shape.queues}&pages={pages}&frames={frames}"
    with cxl_kv.open(f"{url}&half_lines={half_lines}") as device:
        for label, stored in formats.items():
            got = losses(
                model,
                batch,
                lambda stored=stored: EndpointCache(
                    device, model.config, formats=stored, policy=cxl_kv.Policy()
                ),
            )
            change = difference(label, 0, np.stack((got - base, predicted), axis=1))
            print(
                f"{label:>10}: {perplexity * (1 + change.increase):.4f} ({change.increase:+.3%}, "
                + f"95 % of texts {change.low:+.3%} … {change.high:+.3%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
