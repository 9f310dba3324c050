# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hugging Face generate() with its KV cache on a KELP device: the tokens of DynamicCache, and a
report of where the keys and values went.

    .venv.hf/bin/python examples/generate.py golden:trace
    .venv.hf/bin/python examples/generate.py rtl:trace --tokens 8
    .venv.hf/bin/python examples/generate.py golden:trace --model PATH --prompt "def read("
    --formats int8

Without --model, a small Llama with random weights stands in: its text is nonsense, its attention
and its cache are real. Simulation is not acceleration.
"""

import argparse
import time

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, use_probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", default="golden:trace", help="golden:CONFIG, rtl:CONFIG, unix:/path …"
    )
    parser.add_argument(
        "--model", help="folder of a causal language model; a random one when left out"
    )
    parser.add_argument("--prompt", default="import os\n\ndef read_file(path):\n")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--formats", default="raw16", help="raw16, fp8_e4m3, fp8_e5m2, int8, int4")
    options = parser.parse_args()

    if options.model:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float16).eval()
        inputs = tokenizer(options.prompt, return_tensors="pt", return_token_type_ids=False)
    else:
        torch.manual_seed(1)
        tokenizer = None
        model = (
            LlamaForCausalLM(
                LlamaConfig(
                    hidden_size=128,
                    intermediate_size=256,
                    num_hidden_layers=4,
                    num_attention_heads=8,
                    num_key_value_heads=2,
                    head_dim=32,
                    vocab_size=512,
                    eos_token_id=None,
                )
            )
            .to(torch.float16)
            .eval()
        )
        ids = torch.randint(3, 512, (1, 16))
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))

    use_probe(model)
    how = dict(max_new_tokens=options.tokens, do_sample=False)
    expected = model.generate(**inputs, past_key_values=DynamicCache(config=model.config), **how)
    with cxl_kv.open(options.device) as device:
        cache = EndpointCache(device, model.config, formats=options.formats)
        started = time.perf_counter()
        got = model.generate(**inputs, past_key_values=cache, **how)
        seconds = time.perf_counter() - started
        print(tokenizer.decode(got[0]) if tokenizer else got[0].tolist())
        same = int((got == expected[:, : got.shape[1]]).sum())
        print(
            f"{same} of {got.numel()} tokens as with DynamicCache; "
            + f"{options.tokens / seconds:.1f} tokens/s of simulated memory"
        )
        print(cache.report())
        if device.ld_id:
            return  # a server's client sees its own sessions alone
        counters = device.counters()
        print(
            f"device: {counters['writes']:,} lines written, {counters['reads']:,} read, "
            + f"{counters['hint_updates']:,} attention masses taken"
        )


if __name__ == "__main__":
    main()
