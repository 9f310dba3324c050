# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Tests of the inference engines: each file needs an environment of its own, which `make test-engines` makes. Elsewhere they are not collected."""

import importlib.util

NEEDS = {"test_hf.py": "transformers", "test_recorder.py": "transformers", "test_lmcache.py": "lmcache", "test_vllm.py": "vllm", "test_sglang.py": "sglang"}

collect_ignore = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is None]
