# SPDX-License-Identifier: Apache-2.0
"""`python -m magi_attention doctor`: what the package finds on this machine, and whether a small
attention by every backend that serves it is right.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from magi_attention import _environment, backends
from magi_attention._native.library import gpu_architectures, library_file, version
from magi_attention.backends._registry import OWN
from magi_attention.compat.testing import ref_attn_func
from magi_attention.env import check_all, general
from magi_attention.masks import from_cu_seqlens
from magi_attention.plan import Plan

OK, WRONG, UNFIT = 0, 1, 3  # as the command magi exits

_DOCUMENTS = (0, 70, 133, 200)  # bounds of packed causal documents
_HEADS_Q, _HEADS_KV, _DIM = 4, 2, 64
_SECONDS = 300  # that a rank may take
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Check(NamedTuple):
    """The run of a small attention, and a sentence for each result that is off."""

    device: str
    backend: str
    findings: list[str]


def main(arguments: list[str], package: str) -> int:
    """Prints a page, or JSON with --json; the exit code, 2 for other arguments."""
    if arguments not in ([], ["--json"]):
        print(f"usage: python -m magi_attention doctor [--json]; seen: {' '.join(arguments)}")
        return 2
    report = examine(package)
    print(json.dumps(report, indent=1) if arguments else as_text(report))
    return report["exit_code"]


def examine(package: str) -> dict[str, Any]:
    """Everything that the page says, as plain values; package: the version of this one."""
    rows = backends.table()
    unfit = environment_findings(rows)
    checks = checks_of(rows)
    wrong = [one for one in checks if one.findings]
    served = {device for row in rows for device in row.devices if row.name in OWN}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda:{index}" not in served and _is_own_chosen():
            unfit.append(f"cuda:{index} has no kernels of the library; docs/backends.md has others")
    return {
        "magi_attention": f"{package} in {os.path.dirname(os.path.abspath(__file__))}",
        "python": platform.python_version(), "torch": torch.__version__,
        "torch_cuda": torch.version.cuda, "nccl": _nccl_version(), "library": library_file(),
        "libmagi": version(), "gpu_kernels": gpu_architectures().split(), "gpus": _gpus(),
        "variables": _environment.read_variables(_environment.PREFIX, _RANKS),
        "backends": [row._asdict() for row in rows],
        "attention": [one._asdict() for one in checks],
        "unfit": unfit,
        "exit_code": WRONG if wrong or not checks else UNFIT if unfit else OK,
    }  # fmt: skip


def environment_findings(rows: list[backends.Row]) -> list[str]:
    """One sentence for each variable that is not allowed, or asks for what is not here."""
    found = []
    try:
        check_all()
        chosen = general.kernel_backend().value
    except ValueError as error:
        return [str(error)]
    for row in rows:
        if chosen in row.values and not row.devices:
            found.append(f"MAGI_ATTENTION_KERNEL_BACKEND is {chosen!r}, but {row.reason}")
    numbers = {}
    for name in ("RANK", "WORLD_SIZE"):
        try:
            numbers[name] = _environment.read_int(name, -1, 0)
        except ValueError as error:
            found.append(str(error))
            numbers[name] = -1
    rank, size = numbers["RANK"], numbers["WORLD_SIZE"]
    if _environment.is_set("RANK") != _environment.is_set("WORLD_SIZE"):
        found.append("RANK and WORLD_SIZE are not both set; allowed: both or neither")
    elif size >= 0 and rank >= size:
        found.append(f"RANK is {rank}; allowed: 0 to {size - 1}, as WORLD_SIZE is {size}")
    return found


def _is_own_chosen() -> bool:
    try:
        return general.kernel_backend().value in OWN
    except ValueError:
        return True


def checks_of(rows: list[backends.Row]) -> list[Check]:
    """One rank on every device by every backend that serves it, and two ranks on the CPU."""
    found = []
    for row in rows:
        for device in row.devices:
            name = "the library's own" if row.name in OWN else row.name
            findings = _guarded(lambda device=device, row=row: compare(device, row.name))
            found.append(Check(device, name, findings))
    return [*found, Check("two ranks on the cpu", "the library's own", _guarded(over_two_ranks))]


def _guarded(run: Callable[[], list[str]]) -> list[str]:
    try:
        return run()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def compare(
    device: str, backend: str, group: torch.distributed.ProcessGroup | None = None
) -> list[str]:
    """One sentence for each of out, lse, dq, dk and dv that is off: 16-bit ones by more than twice
    the error of the plain 16-bit computation and an ulp, others by more than 128 ulps. Over the
    ranks of a group: gradients are those of all of them.
    """
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(7)
    rows = _DOCUMENTS[-1]
    q, k, v, dout = (
        torch.rand(rows, heads, _DIM, generator=generator).mul(2).sub(1).to(dtype).to(device)
        for heads in (_HEADS_Q, _HEADS_KV, _HEADS_KV, _HEADS_Q)
    )
    got = _by_backend((q, k, v), dout, backend, group)
    truth = _dense((q, k, v), dout, is_exact=True)
    plain = _dense((q, k, v), dout, is_exact=False)
    findings = []
    for name, wanted in truth.items():
        error = (got[name].double() - wanted).abs().max().item()
        scale = max(1.0, wanted.abs().max().item())
        if dtype == torch.float32:
            allowed = 128 * torch.finfo(dtype).eps * scale
        elif name == "lse":
            allowed = 2e-4 * scale
        else:
            rounding = (plain[name].double() - wanted).abs().max().item()
            allowed = 2 * rounding + torch.finfo(dtype).eps * scale
        if not error <= allowed:  # as with NaN
            findings.append(f"{name}: error {error:.3g}, allowed {allowed:.3g}")
    return findings


def _by_backend(
    qkv: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    backend: str,
    group: torch.distributed.ProcessGroup | None,
) -> dict[str, torch.Tensor]:
    plan = Plan.from_mask(
        from_cu_seqlens(_DOCUMENTS), cp_size=1 if group is None else group.size(),
        num_heads_q=_HEADS_Q, num_heads_kv=_HEADS_KV, head_dim=_DIM,
    )  # fmt: skip
    bound = plan.bind(group, backend=backend)
    leaves = [bound.dispatch(x).detach().requires_grad_() for x in qkv]
    out, meta = bound.calc_attn(*leaves)
    out.backward(bound.dispatch(dout))
    found = {"out": out.detach(), "lse": meta.lse.detach()}
    found.update({f"d{name}": leaf.grad for name, leaf in zip("qkv", leaves)})
    return {name: bound.undispatch(found[name]) for name in found}


def over_two_ranks() -> list[str]:
    """Reports what either of two processes finds that join a gloo group over a file."""
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        told = context.SimpleQueue()
        ranks = [
            context.Process(target=_as_rank, args=(rank, os.path.join(folder, "store"), told))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(_SECONDS)
        for number, rank in enumerate(ranks):
            if rank.is_alive():
                rank.kill()
                return [f"rank {number} has not ended after {_SECONDS} s"]
            if rank.exitcode:
                return [f"rank {number} ended with exit code {rank.exitcode}"]
        return [finding for _ in ranks for finding in told.get()]


def _as_rank(rank: int, store: str, told: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    group = torch.distributed.group.WORLD
    told.put([f"rank {rank}: {one}" for one in _guarded(lambda: compare("cpu", OWN[0], group))])
    torch.distributed.destroy_process_group()


def _dense(
    qkv: tuple[torch.Tensor, ...], dout: torch.Tensor, is_exact: bool
) -> dict[str, torch.Tensor]:
    """Computes it in float64, or as plain torch does in the type of q."""
    rows = torch.arange(_DOCUMENTS[-1])
    document = torch.bucketize(rows, torch.tensor(_DOCUMENTS[1:]), right=True)
    mask = (document[:, None] == document) & (rows[:, None] >= rows)
    dtype = torch.float64 if is_exact else qkv[0].dtype
    leaves = [x.detach().to(dtype).requires_grad_() for x in qkv]
    out, meta = ref_attn_func(
        *leaves, mask.to(dout.device), high_precision=is_exact, return_lse=True
    )
    out.backward(dout.to(dtype))
    gradients = {f"d{name}": leaf.grad for name, leaf in zip("qkv", leaves)}
    return {"out": out.detach(), "lse": meta.lse.detach(), **gradients}


def as_text(report: dict[str, Any]) -> str:
    """The page for a person."""
    kernels = ", ".join(report["gpu_kernels"]) or "none"
    lines = [
        ("magi_attention", report["magi_attention"]),
        ("python", report["python"]),
        ("torch", f"{report['torch']}, CUDA {report['torch_cuda'] or 'none'}"),
        ("NCCL", report["nccl"] or "none in this torch"),
        ("library", f"{report['library']}, libmagi {report['libmagi']}, GPU kernels: {kernels}"),
    ]
    lines += [(gpu["device"], gpu["text"]) for gpu in report["gpus"]] or [
        ("GPUs", "torch sees none")
    ]
    lines += [("variable", f"{name}={value}") for name, value in report["variables"].items()]
    for row in report["backends"]:
        where = ", ".join(row["devices"])
        reason = f"no GPU: {row['reason']}" if row["reason"] else ""
        told = f"{row['package']} {row['version']}".strip()
        text = "; ".join(filter(None, (where and f"serves {where}", reason)))
        lines.append(("backend", f"{'|'.join(row['values'])} ({told}): {text}"))
    for one in report["attention"]:
        decision = "WRONG" if one["findings"] else "right"
        lines.append(("attention", f"{one['device']}, {one['backend']}: {decision}"))
        lines += [("", finding) for finding in one["findings"]]
    lines += [("summary", text) for text in _summaries(report)]
    return "\n".join(f"{label:16s}{text}".rstrip() for label, text in lines)


def _summaries(report: dict[str, Any]) -> list[str]:
    if report["exit_code"] == WRONG:
        return ["attention on this machine is WRONG: do not use it"]
    return [f"unfit: {reason}" for reason in report["unfit"]] or [
        "attention runs on this machine and is right"
    ]


def _nccl_version() -> str:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


def _gpus() -> list[dict[str, str]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        text = (
            f"{about.name}, compute capability {about.major}.{about.minor}, "
            f"{about.total_memory / 2**30:.0f} GiB"
        )
        found.append({"device": f"cuda:{index}", "text": text})
    return found
