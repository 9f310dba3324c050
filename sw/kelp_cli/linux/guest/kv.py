# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A KV session of the host library, in the guest on `cxl:/dev/dax…`: `kv.py URL`. What is stored in
two layers, in a batch and again in places, is read back, and the device's counters have seen it."""

import sys

import numpy as np

import cxl_kv
import cxl_kv.backends.cxl  # so that a rehearsal on another device loads it, too

TOKENS = 8


def say(name, value):
    print(f"kelp: {name} {value}", flush=True)


def main(url):
    shape = cxl_kv.ModelShape(layers=2, kv_heads=2, head_dim=32)
    x = np.random.default_rng(7).standard_normal((2, 2, 2, TOKENS, 32)).astype(np.float16)
    bits = x.view(np.uint16)
    with cxl_kv.open(url) as device:
        say("kv_config", device.config.name)
        before = device.counters()
        with device.open_session(shape, max_tokens=TOKENS) as session:
            session.write([0, 1], bits[0], bits[1])
            bits[:, 1, :, 3] ^= 1
            session.write(1, bits[0, 1, :, 3:4], bits[1, 1, :, 3:4], positions=[3])
            session.advance()
            k, v = session.read([0, 1], stop=TOKENS, dtype=np.uint16)
        differing = int((np.stack([k, v]) != bits).sum())
        after = device.counters()
        try:
            session.read(0, stop=1)
            say("failed", "a closed session of cxl_kv answers")
        except cxl_kv.SessionClosedError:
            pass
    say("kv_elements", bits.size)
    say("kv_differing", differing)
    for name in ("reads", "writes"):
        say(f"kv_{name}", after[name] - before[name])


if __name__ == "__main__":
    main(sys.argv[1])
