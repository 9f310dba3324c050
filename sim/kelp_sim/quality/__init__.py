# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a stored format costs on real keys and values: signal to noise, attention-output error,
perplexity. docs/quality.md has the findings.

Needs NumPy alone: the reference model runs in plain NumPy (:mod:`.llama`), formats of the device
are the golden codec's, bit for bit (:mod:`.formats`).
"""
