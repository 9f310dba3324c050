# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Wall-clock rows of ``kelp bench`` for the host library: what its calls cost on this machine, each
the median of several. Simulation is not acceleration."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

from ..output import complain

__all__ = ["hf_rows", "host_rows"]

_CONFIG = "trace"
_TOKENS = 1024
_PROMPT = "<|im_start|>user\nWhat is a cache?<|im_end|>\n<|im_start|>assistant\n"


def host_rows() -> Iterator:
    """`host.golden.*`: bytes written to and read from the golden model by one call for all layers;
    `host.rtl.lines_per_second` the same on the RTL; `host.call_overhead_us`: a write of 64 tokens
    of one layer, less the golden model's own time for its lines."""
    import numpy as np

    import cxl_kv
    from kelp_verif.measure.rows import Row

    shape = cxl_kv.ModelShape(layers=4, kv_heads=2, head_dim=32, formats="raw16")
    k, v = np.random.default_rng(1).standard_normal((2, 4, 2, _TOKENS, 32)).astype(np.float16)
    layers = list(range(4))
    with cxl_kv.open(f"golden:{_CONFIG}") as device, device.open_session(shape) as session:
        session.write(layers, k, v)
        seconds = _median(5, lambda: session.write(layers, k, v))
        yield Row("host.golden.write_GBps", 2 * k.nbytes / seconds / 1e9, "GB/s", config=_CONFIG)
        seconds = _median(5, lambda: session.read(layers, stop=_TOKENS))
        yield Row("host.golden.read_GBps", 2 * k.nbytes / seconds / 1e9, "GB/s", config=_CONFIG)
        inside = [0.0]
        core = device.transport.core
        store = core.store

        def timed(*arguments):
            started = time.perf_counter()
            store(*arguments)
            inside[0] += time.perf_counter() - started

        core.store = timed
        overheads = []
        for _ in range(200):
            inside[0], started = 0.0, time.perf_counter()
            session.write(0, k[0, :, :64], v[0, :, :64])
            overheads.append(time.perf_counter() - started - inside[0])
        yield Row("host.call_overhead_us", 1e6 * statistics.median(overheads), "µs", config=_CONFIG)
    with cxl_kv.open(f"rtl:{_CONFIG}") as device, device.open_session(shape) as session:
        tokens = 256
        session.write(layers, k[:, :, :tokens], v[:, :, :tokens])
        seconds = _median(3, lambda: session.read(layers, stop=tokens))
        yield Row(
            "host.rtl.lines_per_second", 2 * 4 * 2 * tokens / seconds, "lines/s", config=_CONFIG
        )


def hf_rows() -> Iterator:
    """`hf.tokens_per_second.*`: greedy decoding by a random two-layer Llama of 64 hidden units
    after 32 tokens of prompt; `hf.dax_over_dynamic_cache`: the time of the one over the other's,
    run by run; `hf.update_us.*`: an `update` of one token in a layer of SmolLM2's sizes, 200 tokens
    before it. `hf.smollm2.*` the rates of SmolLM2-135M in fp16, where its weights are installed.
    Needs the environment of `make test-engines`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = (
        LlamaForCausalLM(
            LlamaConfig(
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                vocab_size=101,
                pad_token_id=0,
                eos_token_id=None,
            )
        )
        .to(torch.bfloat16)
        .eval()
    )
    ids = torch.randint(3, 101, (1, 32))
    yield from _decoded("hf", model, ids, _CONFIG, tokens=32, rounds=5)
    yield from _updates()
    yield from _of_smollm2()


def _of_smollm2() -> Iterator:
    """`hf.smollm2.*`, or a line on stderr that says why there are none."""
    import torch

    from kelp_sim.lab.models import load, smollm2
    from kelp_sim.lab.recorder import RecorderError

    try:
        path = smollm2()
    except RecorderError as error:
        complain(f"the rows hf.smollm2.* are left out: {error}")
        return
    model, tokenizer = load(str(path))
    ids = tokenizer(_PROMPT, return_tensors="pt")["input_ids"]
    model = model.to(torch.float16)
    yield from _decoded("hf.smollm2", model, ids, "smollm2", tokens=64, rounds=3)


def _updates() -> Iterator:
    """`hf.update_us.*`, CPU time, layer after layer as in decoding; the caches take turns."""
    import torch
    from transformers import DynamicCache, LlamaConfig

    import cxl_kv
    from cxl_kv.connectors.hf import EndpointCache
    from kelp_verif.measure.rows import Row

    layers, heads, head_dim, tokens = 30, 3, 64, 20
    config = LlamaConfig(
        hidden_size=9 * head_dim,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=heads,
        head_dim=head_dim,
    )
    prompt, one = (torch.randn(1, heads, n, head_dim, dtype=torch.float16) for n in (200, 1))
    with (
        tempfile.TemporaryDirectory() as folder,
        cxl_kv.open(f"dax:{folder}/memory?config=smollm2&create=1") as device,
    ):
        caches = {
            "dynamic_cache": lambda: DynamicCache(config=config),
            "dax": lambda: EndpointCache(device, config, policy=cxl_kv.Policy(score="observed")),
        }
        seconds = {name: [] for name in caches}
        for _ in range(5):
            for name, cache_of in caches.items():
                cache = cache_of()
                for layer in range(layers):
                    cache.update(prompt, prompt, layer)
                for _ in range(tokens):
                    started = time.process_time()
                    for layer in range(layers):
                        cache.update(one, one, layer)
                    seconds[name].append((time.process_time() - started) / layers)
                if isinstance(cache, EndpointCache):
                    cache.close()
    for name, took in seconds.items():
        of = "smollm2" if name == "dax" else ""
        yield Row(f"hf.update_us.{name}", 1e6 * statistics.median(took), "µs", config=of)


def _decoded(name, model, ids, config, *, tokens, rounds) -> Iterator:
    """The rows `name`.* of a model that goes on after ``ids``."""
    import torch
    from transformers import DynamicCache

    import cxl_kv
    from cxl_kv.connectors.hf import EndpointCache
    from kelp_verif.measure.rows import Row

    def once(cache, tokens):
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
        )
        if isinstance(cache, EndpointCache):
            cache.close()

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        caches = {"dynamic_cache": (lambda: DynamicCache(config=model.config), tokens)}
        for back_end, url, count in (
            ("dax", f"dax:{folder}/memory?config={config}&create=1", tokens),
            ("golden", f"golden:{config}", tokens),
            ("rtl", f"rtl:{config}", 8),
        ):
            device = stack.enter_context(cxl_kv.open(url))
            caches[back_end] = (
                lambda device=device: EndpointCache(device, model.config, policy=cxl_kv.Policy()),
                count,
            )
        # They take turns, so that a busy moment of the machine is not one cache's alone.
        seconds = {back_end: [] for back_end in caches}
        for timed in (False, *[True] * rounds):
            for back_end, (cache_of, count) in caches.items():
                cache, started = cache_of(), time.perf_counter()
                once(cache, count)
                if timed:
                    seconds[back_end].append(time.perf_counter() - started)
    for back_end, (_, count) in caches.items():
        got = count / statistics.median(seconds[back_end])
        of = "" if back_end == "dynamic_cache" else config
        yield Row(f"{name}.tokens_per_second.{back_end}", got, "tokens/s", config=of)
    slower = [b / a for a, b in zip(seconds["dynamic_cache"], seconds["dax"], strict=True)]
    yield Row(f"{name}.dax_over_dynamic_cache", statistics.median(slower), "ratio", config=config)


def _median(runs: int, call: Callable[[], object]) -> float:
    """Seconds of the median call."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
