# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SmolLM2-135M-Instruct for tests of Hugging Face's environment."""

import pytest
import torch

from kelp_sim.lab.models import load, smollm2
from kelp_sim.lab.recorder import RecorderError


def smollm2_or_skip():
    """(model, tokenizer), on one thread; where its weights are missing the test is skipped, with
    the line that says what to install."""
    try:
        path = smollm2()
    except RecorderError as error:
        pytest.skip(str(error))
    torch.set_num_threads(1)
    return load(str(path))
