# SPDX-License-Identifier: Apache-2.0
"""Rules of C++ and CUDA sources: lengths, the home of `asm`, layers."""

import pathlib
import re

from house.text import check_text

SUFFIXES = {".cpp", ".hpp", ".h", ".cu", ".cuh"}
CUDA_SUFFIXES = {".cu", ".cuh"}
HOST_FUNCTION_LINES = 50
KERNEL_BODY_LINES = 60
DEVICE_FUNCTION_LINES = 80

# What a folder under src/ may include by path, besides itself.
LAYERS = {
    "base": set(),
    "cuda": {"base"},
    "mask": {"base"},
    "plan": {"base", "mask"},
    "batch": {"base", "mask", "plan"},
    "simulate": {"base", "mask", "plan"},
    "draw": {"base", "mask", "plan", "batch"},
    "comm": {"base", "cuda"},
    "kernels": {"base", "mask", "cuda"},
    "runtime": {"base", "mask", "plan", "comm", "cuda", "kernels"},
    "capi": {"base", "mask", "plan", "comm", "cuda", "kernels", "draw", "runtime", "batch"},
}
# What the folders of an ordered folder may include of each other; each also includes itself. The
# ordered folder's own files lie above them all.
FOLDERS = {
    "src/comm": {
        "net": set(),
        "rows": {"net"},
        "device_rows": {"net", "rows"},
        "engine": {"net", "rows", "device_rows"},
        "nccl": {"net", "rows", "device_rows"},
        "nvlink": {"net", "rows", "device_rows"},
    },
    "src/kernels/schedule": {"host": set(), "device": {"host"}, "blocks": {"host", "device"}},
    # The checker may not include what makes plans: tables, placement, travel.
    "src/plan": {
        "value": set(),
        "tables": {"value"},
        "cost": {"value", "tables"},
        "check": {"value", "cost"},
        "placement": set(),
        "travel": {"value", "tables", "cost"},
        "text": {"value", "cost", "check"},
    },
    "cli": {
        "bounds": set(),
        "common": set(),
        "ranks": {"common"},
        "bench": {"common", "ranks"},
        "demo": {"bounds", "common", "ranks"},
        "doctor": {"common", "ranks"},
        "simulate": {"common", "ranks"},
        "verify": {"common", "ranks"},
    },
}
NO_CUDA = {"base", "mask", "plan", "batch", "simulate", "draw"}


_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*\""""
    r"""|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'""",
    re.S,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)


def _blanked(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def blank_comments_and_strings(text):
    """The text with comments, strings and characters replaced by spaces, line structure kept."""
    return _TEXT.sub(_blanked, text)


CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()=]*$")
SPECIFIER = re.compile(r"\b(alignas|__align__|__attribute__)\s*\([^()]*\)")


def functions(text):
    """(start line, line count, head) of every function body; one inside another is part of it."""
    code = _DIRECTIVE.sub(_blanked, blank_comments_and_strings(text))
    stack, found, head_start = [], [], 0
    for index, char in enumerate(code):
        if char in ";}" and not any(kind == "function" for kind, _, _ in stack):
            if char == ";":
                head_start = index + 1
        if char == "{":
            inside = any(kind == "function" for kind, _, _ in stack)
            head = SPECIFIER.sub("", code[head_start:index])
            is_container = (
                CONTAINER.search(head) is not None
                and ")" not in head.split("struct")[-1].split("class")[-1]
            )
            kind = (
                "other"
                if inside
                else "container"
                if is_container
                else "function"
                if ")" in head
                else "other"
            )
            stack.append((kind, index, head))
            if not inside:
                head_start = index + 1
        elif char == "}" and stack:
            kind, start, head = stack.pop()
            if kind == "function":
                found.append(
                    (
                        code.count("\n", 0, start) + 1,
                        code.count("\n", start, index) + 1,
                        " ".join(head.split()),
                    )
                )
            if not any(entry[0] == "function" for entry in stack):
                head_start = index + 1
    return found


def check_lengths(path, text, report):
    """Caps on the file, its lines and its functions."""
    check_text(path, text, report)
    for start, length, head in functions(text):
        cap = HOST_FUNCTION_LINES
        if "__global__" in head:
            cap = KERNEL_BODY_LINES
        elif "__device__" in head or "__host__" in head:
            cap = DEVICE_FUNCTION_LINES
        if length > cap:
            report(path, start, f"function of {length} lines; at most {cap}")


def place_of(name):
    """(ordered folder, folder in it or None) of a path from ROOT; nothing outside of FOLDERS."""
    for ordered in FOLDERS:
        if name.startswith(f"{ordered}/"):
            inside = name.removeprefix(f"{ordered}/")
            return ordered, inside.split("/")[0] if "/" in inside else None
    return None


def is_below(name, target):
    """Whether the file `name` may include the file `target`, as far as FOLDERS tells."""
    place, given = place_of(name), place_of(target)
    if place is None or given is None or place[0] != given[0] or place[1] in (None, given[1]):
        return True
    ordered, folder = place
    return given[1] in FOLDERS[ordered][folder]


def check_homes(path, text, report):
    """`asm` in its home only; no CUDA call of the library whose failure stays with the runtime."""
    parts = path.parts
    code = blank_comments_and_strings(text)
    if parts[0] in ("src", "include", "cli", "tests", "bench") and re.search(r"\basm\b", code):
        if parts[:3] != ("src", "cuda", "ptx"):
            report(path, 1, "asm outside src/cuda/ptx")
    if parts[0] not in ("src", "cli", "plugins"):
        return
    for match in re.finditer(r"static_cast<void>\((cuda(?!GetLastError\b)[A-Z]\w*)", code):
        line = code.count("\n", 0, match.start()) + 1
        report(path, line, f"{match.group(1)}: cuda_forget ignores a failure, not a cast")


def check_layers(path, text, report):
    """Includes from lower layers only, and what check_homes looks for; path is relative to the
    root.
    """
    check_homes(path, text, report)
    parts = path.parts
    if parts[0] != "src" or len(parts) < 3:
        return
    layer = parts[1]
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#include\s+[<"]([^">]+)[">]', line)
        if not match:
            continue
        target = match.group(1).split("/")[0]
        if target in LAYERS and target != layer and target not in LAYERS[layer]:
            report(path, number, f"src/{layer} may not include {match.group(1)}")
        if layer in NO_CUDA and re.search(r"cuda|nvtx", match.group(1)):
            report(path, number, f"src/{layer} may not see CUDA")
        if path.suffix in (".hpp", ".h", ".cuh") and re.search(r"nlohmann|CLI/", match.group(1)):
            report(path, number, "nlohmann and CLI11 stay in .cpp files")


def included(name, texts):
    """(line, path) of every source that a source includes by a quoted name; texts: by path from
    ROOT.
    """
    folder = pathlib.PurePosixPath(name).parent
    # Tests are compiled with their own folder before those of the sources.
    is_test = folder.parts[:1] == ("tests",)
    roots = ("tests", "src", "include", "cli") if is_test else ("src", "include", "cli", "tests")
    for number, line in enumerate(texts[name].splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match:
            continue
        for target in (f"{root}/{match.group(1)}" for root in (folder, *roots)):
            if target in texts:
                yield number, target
                break


def include_graph(texts):
    """From every source to the sources it includes."""
    return {name: {target for _, target in included(name, texts)} for name in texts}


def check_folders(texts, report):
    """Includes from lower folders only, where FOLDERS orders them."""
    for name in texts:
        for number, target in included(name, texts):
            if not is_below(name, target):
                ordered, folder = place_of(name)
                report(name, number, f"{ordered}/{folder} may not include {target}")
