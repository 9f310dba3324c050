# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A Llama-shaped model in NumPy, float32: a folder with config.json, model.safetensors (fp16 or
fp32) and tokenizer.json.

:meth:`Llama.losses` runs a whole text at once, teacher-forced. Keys (after RoPE) and values of
every layer pass through ``store`` as float16 [2, kv_heads, tokens, head_dim] (K, V) before any
query sees them: what comes back is what is attended to, of the token's own key and value too, as
with a host that reads everything from the device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..trace.trace import parsed, printable

__all__ = ["Llama", "ModelError", "attend", "check", "load"]

_ROWS = 256  # queries at once: bounds memory and skips most of what causality masks
_TYPES = {"F16": np.float16, "F32": np.float32}
_SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "rope_theta",
    "rms_norm_eps",
)

_MOST = 1 << 32  #: of any number of a configuration

Store = Callable[[int, np.ndarray], np.ndarray]
Attention = Callable[[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class ModelError(ValueError):
    """The folder holds no model that this runs; one line says why."""


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Causal attention of queries [heads, n, d], which stand at tokens ``positions`` (ascending),
    over [kv_heads, tokens, d]; float32 [heads, n, d]."""
    heads, count, dim = q.shape
    group = heads // len(k)
    out = np.empty(q.shape, np.float32)
    scale = np.float32(dim**-0.5)
    for start in range(0, count, _ROWS):
        rows = positions[start : start + _ROWS]
        # No row looks beyond its own token, and every row sees the tokens up to the first row's.
        seen, sure = rows[-1] + 1, rows[0] + 1
        hidden = np.arange(sure, seen)[None, :] > rows[:, None]
        for head in range(heads):
            scores = q[head, start : start + _ROWS] @ (k[head // group, :seen].T * scale)
            scores[:, sure:][hidden] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[head, start : start + _ROWS] = (
                scores @ v[head // group, :seen] / scores.sum(axis=1, keepdims=True)
            )
    return out


@dataclass(frozen=True, eq=False)
class Llama:
    """Weights by their safetensors names, and the shape."""

    path: Path
    config: dict
    weights: dict[str, np.ndarray]
    digest: str  #: of the weights, and of how they are used

    @property
    def layers(self) -> int:
        return self.config["num_hidden_layers"]

    @property
    def kv_heads(self) -> int:
        return self.config["num_key_value_heads"]

    @property
    def head_dim(self) -> int:
        return _head_dim(self.config)

    def losses(
        self, tokens: np.ndarray, store: Store | None = None, attention: Attention | None = None
    ) -> np.ndarray:
        """float64 [tokens − 1]: −log p of each next token. ``attention`` takes the place of
        :func:`attend`, and is told the layer first."""
        x = self.embedded(tokens)
        turn = self.turn(np.arange(len(tokens)))
        for layer in range(self.layers):
            q, k, v = self.project(layer, x, turn)
            kv = np.stack([k, v]).astype(np.float16)
            k, v = kv.astype(np.float32) if store is None else store(layer, kv)
            positions = np.arange(len(tokens))
            out = (
                attend(q, k, v, positions)
                if attention is None
                else attention(layer, q, k, v, positions)
            )
            x = self.after(layer, x, out)
        return self.nats(x[:-1], tokens[1:])

    def embedded(self, tokens: np.ndarray) -> np.ndarray:
        """float32 [tokens, hidden]: what the first layer sees."""
        return self.weights["model.embed_tokens.weight"][tokens].astype(np.float32)

    def project(self, layer: int, x: np.ndarray, turn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v [heads, rows, head_dim] of a layer, q and k turned by RoPE, from x [rows,
        hidden]."""
        normed = self._normed(layer, x)
        heads = self.kv_heads
        k, v = (self._rows(layer, name, normed, heads) for name in ("k", "v"))
        return self.query(layer, x, turn, normed), _turned(k, *turn), v

    def query(
        self, layer: int, x: np.ndarray, turn, normed: np.ndarray | None = None
    ) -> np.ndarray:
        """q alone; of another layer's x it is a guess of what this layer will ask for."""
        normed = self._normed(layer, x) if normed is None else normed
        return _turned(self._rows(layer, "q", normed, self.config["num_attention_heads"]), *turn)

    def after(self, layer: int, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """The layer's output from its input x and its heads' attention [heads, rows, head_dim]."""
        w, at = self.weights, f"model.layers.{layer}."
        out = out.transpose(1, 0, 2).reshape(len(x), -1)
        x = x + out @ w[at + "self_attn.o_proj.weight"].T
        normed = self._norm(x, w[at + "post_attention_layernorm.weight"])
        gate = normed @ w[at + "mlp.gate_proj.weight"].T
        return (
            x
            + (gate / (1 + np.exp(-gate)) * (normed @ w[at + "mlp.up_proj.weight"].T))
            @ w[at + "mlp.down_proj.weight"].T
        )

    def nats(self, x: np.ndarray, following: np.ndarray) -> np.ndarray:
        """float64 [rows]: −log p of the tokens that follow, from the last layer's output."""
        w = self.weights
        logits = (
            self._norm(x, w["model.norm.weight"])
            @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
        )
        logits -= logits.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(logits, following[:, None], axis=1)[:, 0]
        return np.log(np.exp(logits).sum(axis=1, dtype=np.float64)) - chosen

    def turn(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """RoPE's cosines and sines [positions, head_dim]."""
        frequency = self.config["rope_theta"] ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = positions[:, None] * np.concatenate([frequency, frequency])[None, :]
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def moved(self, rows: np.ndarray, by: np.ndarray) -> np.ndarray:
        """Keys or queries [n, head_dim] as they would be `by` [n] tokens further on."""
        return _turned(rows, *self.turn(by))

    def _normed(self, layer: int, x: np.ndarray) -> np.ndarray:
        return self._norm(x, self.weights[f"model.layers.{layer}.input_layernorm.weight"])

    def _rows(self, layer: int, name: str, normed: np.ndarray, heads: int) -> np.ndarray:
        return self._heads(
            normed @ self.weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"].T, heads
        )

    def _heads(self, rows: np.ndarray, heads: int) -> np.ndarray:
        return np.ascontiguousarray(
            rows.reshape(len(rows), heads, self.head_dim).transpose(1, 0, 2)
        )

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return (
            x
            / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(self.config["rms_norm_eps"]))
            * weight
        )


def _turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin


def check(config: dict, where: str) -> dict:
    """The configuration with what :class:`Llama` reads; ModelError where it runs no such model."""
    # transformers 5 keeps the base of RoPE in a table of its own.
    rope = config.get("rope_parameters") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(rope, dict | None):
        raise ModelError(f"{where} is no configuration of a model")
    rope = rope or {}
    config = config | {"rope_theta": config.get("rope_theta") or rope.get("rope_theta")}
    missing = [key for key in _SHAPE if config.get(key) is None]
    if config.get("model_type") != "llama" or missing:
        raise ModelError(
            f"{where} is not of a Llama-shaped model"
            + (f": {', '.join(missing)} missing" if missing else "")
        )
    if (
        config.get("rope_scaling")
        or rope.get("rope_type", "default") != "default"
        or config.get("hidden_act", "silu") != "silu"
        or config.get("attention_bias")
        or config.get("mlp_bias")
    ):
        raise ModelError(
            f"{where} has rope_scaling, biases or another activation than silu, "
            + "which this model does not run"
        )
    _check_sizes(config, where)
    return config


def _check_sizes(config: dict, where: str) -> None:
    for key in (*_SHAPE, *(["head_dim"] if config.get("head_dim") is not None else [])):
        value, whole = config[key], key not in ("rope_theta", "rms_norm_eps")
        is_number = isinstance(value, int if whole else int | float) and value is not True
        if not is_number or not 0 < value < _MOST:
            raise ModelError(f"{where}: {key} = {printable(repr(value))} is refused")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = _head_dim(config)
    if heads % kv_heads or not head_dim or head_dim % 2:
        raise ModelError(
            f"{where}: {heads} heads of {head_dim} for {kv_heads} KV heads are refused; legal: a "
            + "multiple, of an even size"
        )


def _head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _shapes(config: dict, width: int) -> dict[str, tuple[int, ...]]:
    """Of every weight that :class:`Llama` reads, with feed-forward layers of ``width``."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * _head_dim(config)
    kv_heads = config["num_key_value_heads"] * _head_dim(config)
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }
    return {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    } | {
        f"model.layers.{n}.{name}.weight": shape
        for n in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }


def load(folder: Path) -> Llama:
    """The model of a folder."""
    folder = Path(folder)
    try:
        config = parsed((folder / "config.json").read_text(encoding="utf-8"))
        data = (folder / "model.safetensors").read_bytes()
    except OSError as error:
        ours = folder.parts[:2] == ("data", "model")
        where = "; the small model is no part of the package: it lies in a checkout of KELP"
        raise ModelError(
            f"{error.filename}: {error.strerror}; a folder with config.json, "
            + f"model.safetensors and tokenizer.json is expected{where if ours else ''}"
        ) from None
    except ValueError as error:
        raise ModelError(f"{folder}/config.json: {error}") from None
    config = check(config, f"{folder}/config.json")
    try:
        size = int.from_bytes(data[:8], "little")
        header = parsed(data[8 : 8 + size])
        header.pop("__metadata__", None)
        weights = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end:
                raise ValueError(f"{name} lies at {begin} … {end}")
            flat = np.frombuffer(data[8 + size + begin : 8 + size + end], _TYPES[entry["dtype"]])
            weights[name] = flat.reshape(entry["shape"]).astype(np.float32)
        width = len(weights["model.layers.0.mlp.gate_proj.weight"])
        expected = _shapes(config, width)
        if "lm_head.weight" in weights:
            expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
        for name, shape in expected.items():
            if weights[name].shape != shape:
                raise ValueError(f"{name} is {list(weights[name].shape)}, not {list(shape)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder}/model.safetensors cannot be used: {printable(str(error))}; fp16 or fp32 "
            + "weights are expected"
        ) from None
    used = json.dumps([config.get(key) for key in (*_SHAPE, "head_dim")]).encode()
    return Llama(folder, config, weights, hashlib.sha256(data + used).hexdigest()[:16])
