# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A real model that has its device choose: SmolLM2-135M-Instruct, three query heads to a KV head.
Skipped, with one line that says what to install, where its weights are missing."""

import copy

import pytest
import torch
from real_model import smollm2_or_skip
from transformers import DynamicCache

import cxl_kv
from cxl_kv.connectors import hf_sparse
from cxl_kv.connectors.hf import EndpointCache
from cxl_kv.connectors.hf_sparse import Sparse, use_sparse
from cxl_kv.session import Session

#: 30 layers of 3 KV heads; pages of 16 tokens, every one of which has a frame
SIZES = "queues=90&half_lines=32&frames=8192,16,16,16&select=16&select_heads=3&select_quota=16"
DEVICES = {
    "golden": f"golden:unit_select?{SIZES}",
    "dax": f"dax:{{}}/m?config=unit_select&{SIZES}&create=1",
}
LAYERS, KV_HEADS, GROUP = 30, 3, 3
#: 91 tokens, six pages; the answer is in the first two
PROMPT = (
    "<|im_start|>user\nThe key of the cellar is under the green stone. The lamp stands on the "
    + "table beside the door. The cat sleeps on the roof when it rains, and the dog sleeps in the "
    + "kitchen. The boat lies at the pier, and its oars are in the barn. The letters are in the "
    + "drawer of the desk, which is never locked. Where is the key of the cellar?<|im_end|>\n"
    + "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def loaded():
    """(model in fp16 that has a device choose, inputs, the tokens that it writes by itself)."""
    model, tokenizer = smollm2_or_skip()
    model, inputs = model.to(torch.float16), tokenizer(PROMPT, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 91
    use_sparse(model)
    return model, inputs, generated(model, inputs, DynamicCache(config=model.config))


def generated(model, inputs, cache, tokens=16):
    how = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return model.generate(**inputs, past_key_values=cache, **how).tolist()


class Noted(Session):
    """Keeps what its latest `select` has found."""

    def select(self, *arguments, **options):
        self.chosen = super().select(*arguments, **options)
        return self.chosen


def of_the_pages(session, layer, length, query, scaling):
    """Attention in float32 to the pages that the session chose, and to no other position, of keys
    and values as `read` gives them: [query heads, head_dim], and how many pages."""
    k, v = (torch.from_numpy(x).float() for x in session.read(layer, stop=length))
    out, pages = [], session.chosen.pages
    for head, asked in enumerate(query[0, :, 0].float()):
        chosen = pages[head // GROUP].tolist()
        at = [t for p in sorted(chosen) for t in range(16 * p, min(16 * p + 16, length))]
        assert len(set(at)) == len(at)
        mine, weighs = k[head // GROUP][at], v[head // GROUP][at]
        out.append((mine @ asked * scaling).softmax(dim=0) @ weighs)
    return torch.stack(out), sum(map(len, pages))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("url", DEVICES.values(), ids=DEVICES)
def test_where_every_page_may_be_chosen_the_tokens_are_those_of_dense(loaded, url, tmp_path):
    """Fourteen pages beside the first and the newest, of seven at most. What has less than 2^-16 is
    left out."""
    model, inputs, dense = loaded
    with cxl_kv.open(url.format(tmp_path)) as device:
        with EndpointCache(device, model.config, sparse=Sparse(mass=1.0)) as cache:
            assert generated(model, inputs, cache) == dense
            assert set(cache.counts) == set(range(LAYERS))
            for choices, chosen, there, absent in cache.counts.values():
                assert choices == 15 and there // 2 < chosen <= there and not absent


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("url", DEVICES.values(), ids=DEVICES)
def test_few_pages_are_all_that_is_attended_to(loaded, url, tmp_path, monkeypatch):
    """One page of each KV head beside the first and the newest; layer 4 is asked to be dense. Each
    layer's output is attention over its pages exactly, and what is reported is what was chosen."""
    model, inputs, dense = loaded
    attended, found, pages = hf_sparse._attend, [], dict.fromkeys(range(LAYERS), 0)

    def compared(cache, layer, query, values, mask, scaling):
        (session,) = cache.rows
        session.__class__ = Noted
        output = attended(cache, layer, query, values, mask, scaling)
        length = cache.layers[layer].length
        wanted, count = of_the_pages(session, layer, length, query, scaling)
        found.append(float((output[0, 0].float() - wanted).abs().max() / wanted.abs().max()))
        pages[layer] += count
        return output

    monkeypatch.setattr(hf_sparse, "_attend", compared)
    with cxl_kv.open(url.format(tmp_path)) as device:
        sparse = Sparse(pages=1, mass=1.0, dense=(4,))
        with EndpointCache(device, model.config, sparse=sparse) as cache:
            generated(model, inputs, cache)
            counts, report = copy.deepcopy(cache.counts), cache.report().splitlines()[1:]
    assert len(found) == 29 * 15 and max(found) < 0.01
    assert counts.keys() == set(range(LAYERS)) - {4} and not pages[4]
    lengths = [len(dense[0]) - 15 + step for step in range(15)]  # with the token that asks
    there = KV_HEADS * sum(-(-length // 16) for length in lengths)
    for layer, (choices, chosen, all_pages, absent) in counts.items():
        assert (choices, chosen, all_pages, absent) == (15, pages[layer], there, 0)
        # A page that has less than 2^-16 is left out.
        assert 0.9 * 15 * 3 * KV_HEADS < chosen <= 15 * 3 * KV_HEADS
        told = f"{chosen / 15:.1f} of {there / 15:.1f} pages a step, 0.0 absent"
        assert told in report[layer]
    assert report[4].endswith(", dense") and sum(line.endswith("dense") for line in report) == 1
