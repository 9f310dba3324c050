# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Where things lie in the checkout, for tests at any depth."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
RECORDING = ROOT / "data" / "traces" / "attn_0.npz"  #: the recording that `make demo` replays
