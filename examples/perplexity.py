# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What each stored format costs a model: teacher-forced perplexity with keys and values as the
device gives them back.

    .venv.hf/bin/python examples/perplexity.py --model PATH [--texts 4] [--tokens 1024] [FORMAT …]

A FORMAT is raw16, fp8_e4m3, fp8_e5m2, int8, int4, or K/V apart as int8/int4. The texts are modules
of Python's standard library, each from its beginning.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, model_shape


def texts(tokenizer, count, tokens):
    """The first `count` modules, in alphabetical order, that are long enough; int64[1, tokens]
    each."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        ids = tokenizer(path.read_text(encoding="utf-8", errors="replace"), return_tensors="pt")[
            "input_ids"
        ]
        if ids.shape[1] >= tokens:
            found.append(ids[:, :tokens])
        if len(found) == count:
            break
    return found


def perplexity(model, batch, cache_of):
    total, predicted = 0.0, 0
    for ids in batch:
        cache = cache_of()
        with torch.no_grad():
            logits = model(input_ids=ids, past_key_values=cache).logits.float()
        total += torch.nn.functional.cross_entropy(
            logits[0, :-1], ids[0, 1:], reduction="sum"
        ).item()
        predicted += ids.shape[1] - 1
        if isinstance(cache, EndpointCache):
            cache.close()
    return math.exp(total / predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "formats", nargs="*", default=["raw16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int8/int4"]
    )
    parser.add_argument("--model", required=True, help="folder of a causal language model")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float16).eval()
    batch = texts(tokenizer, options.texts, options.tokens)
    base = perplexity(model, batch, lambda: DynamicCache(config=model.config))
    print(f"{len(batch)} texts of {options.tokens} tokens; DynamicCache: perplexity {base:.4f}")
    page_lines = model_shape(model.config, torch.float16).token_lines * 16
    pages = max(128, 1 << math.ceil(math.log2(options.tokens / 16)))
    with cxl_kv.open(f"golden:trace?pages={pages}&half_lines={max(16, page_lines)}") as device:
        for label in options.formats:
            k, _, v = label.partition("/")
            formats = cxl_kv.LayerFormats(k=k, v=v or k)
            got = perplexity(
                model,
                batch,
                lambda formats=formats: EndpointCache(
                    device, model.config, formats=formats, policy=cxl_kv.Policy()
                ),
            )
            print(f"{label:>10}: {got:.4f} ({100 * (got / base - 1):+.3f} %)")


if __name__ == "__main__":
    main()
