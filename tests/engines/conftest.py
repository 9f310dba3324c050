# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Tests of the inference engines: each file needs an environment of its own, which `make
test-engines` makes. Elsewhere they are not collected.

Where KELP_ENGINE names the engine whose environment this is, its last line counts what ran, and a
skipped test is a failure: nothing here may be left out but what needs the weights of a real model.
"""

import importlib.util
import os

import pytest

NEEDS = {
    "test_hf.py": "transformers",
    "test_hf_examples.py": "transformers",
    "test_hf_quality.py": "transformers",
    "test_hf_requests.py": "transformers",
    "test_hf_smollm2.py": "transformers",
    "test_hf_sparse.py": "transformers",
    "test_hf_sparse_smollm2.py": "transformers",
    "test_hf_train.py": "transformers",
    "test_recorder.py": "transformers",
    "test_lmcache.py": "lmcache",
    "test_vllm.py": "vllm",
    "test_vllm_connector.py": "vllm",
    "test_sglang.py": "sglang",
}

collect_ignore = [
    name for name, package in NEEDS.items() if importlib.util.find_spec(package) is None
]
if not os.environ.get("KELP_ENGINE"):
    collect_ignore.append("test_examples.py")


def _count(reporter, what):
    return len(reporter.stats.get(what, ()))


def _left_out(reporter) -> int:
    """Skipped tests, without those for which SmolLM2 is missing."""
    skipped = reporter.stats.get("skipped", ())
    return sum("the weights of SmolLM2 are not installed" not in str(r.longrepr) for r in skipped)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("KELP_ENGINE") and exitstatus == pytest.ExitCode.OK and _left_out(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    engine = os.environ.get("KELP_ENGINE")
    if engine and reporter is not None:
        failed = _count(reporter, "failed") + _count(reporter, "error")
        print(
            f"{engine}: {_count(reporter, 'passed')} passed, {failed} failed, "
            + f"{_count(reporter, 'skipped')} skipped"
        )
