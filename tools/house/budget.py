# SPDX-License-Identifier: Apache-2.0
"""The size of the house: what `tools/lint --figures` counts and musts bound."""

import ast
import pathlib
import re

from house import cxx

SOURCE_SUFFIXES = cxx.SUFFIXES | {".py", ".c"}
ROW_INTERFACES = ("RowExchanger", "PendingRows")

# A doc comment begins with a verb in the third person or with a noun and its article.
SUBJECTLESS = re.compile(
    r"(Of|Where|What|That|As|By|For|From|In|With|Who|Whom|Whose|When|To|On|At|Until|Without|How)\b"
)

# Words of our own where the field has one; docs/glossary.md has the field's.
_NOUN_BEFORE = r"(?:an|the|one|two|each|every|which|further|first|second|last|later|own|its|no|of)"
PRIVATE_WORDS = re.compile(
    "|".join(
        [
            rf"\b{_NOUN_BEFORE} attends?\b",
            r"\bleft[ _-]over",
            r"\bpatience",
            r"\bverdict",
            r"\barrival[ _]?(?:word|section)",
            r"\balarm[ _]?line",
            r"\bspoil(?:s|ed|t)?\b",
            r"\bcoming[ _]?key",
            r"\b(?:large|flat)[ _]?rows?\b",
            r"\bwhole[ _]?results?\b",
            r"\btile[ _]blocks?\b",
            r"\b(?:say_added|tell_step|bring_home|absorb|settle|take_probabilities)\b",
            r"\b(?:everyone_of|handed_back|_back behind)\b",
        ]
    ),
    re.I,
)

# The subsystems of the table that goes to stderr: name, and the paths that belong to it.
SUBSYSTEMS = (
    ("masks", r"(src|tests|bench)/mask/|include/magi/mask|python/magi_attention/masks/"),
    ("plans", r"(src|tests|bench)/(plan|batch)/|include/magi/(plan|placement|batch)"),
    ("simulator, pictures", r"(src|tests)/(simulate|draw)/|include/magi/(simulat|draw)"),
    ("kernels: Hopper", r"(src|tests)/kernels/(sm90|tile)/|src/cuda/ptx/"),
    ("kernels: schedules", r"(src|tests)/kernels/schedule/"),
    ("kernels: CPU, front", r"(src|tests)/kernels/"),
    ("transports", r"(src|tests)/comm/|include/magi/comm|plugins/|tests/plugins/"),
    ("executor, shards", r"(src|tests)/runtime/|include/magi/(runtime|attention|key_lists)"),
    ("C interface", r"(src|tests)/capi/|include/magi/"),
    ("base, cuda", r"(src|tests)/(base|cuda)/"),
    ("command", r"cli/|tests/cli/"),
    ("Python: adapters", r"python/magi_attention/integrations/|tests/python/.*(trans|train|mega)"),
    ("Python: the original's names", r"python/magi_attention/compat/"),
    ("Python: the rest", r"python/|tests/python/"),
    ("benches, tools", r"bench/|tools/|tests/tools/|tests/reliability/"),
    ("other", r""),
)


def count_lines(texts, *roots):
    return sum(text.count("\n") for name, text in texts.items() if name.split("/")[0] in roots)


def count_words(texts):
    """Words of the README and of the pages under docs/."""
    return sum(len(text.split()) for name, text in texts.items() if is_page(name))


def is_page(name):
    return name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))


def largest_folder(texts):
    """(source files, folder) of the fullest folder of the library and its packages."""
    counts = {}
    for name in texts:
        path = pathlib.PurePosixPath(name)
        if path.suffix in SOURCE_SUFFIXES and path.parts[0] in ("src", "include", "python", "cli"):
            counts[str(path.parent)] = counts.get(str(path.parent), 0) + 1
    return max((count, folder) for folder, count in counts.items())


def doc_comments(name, text):
    """(line, first line of the comment) of every doc comment of a C++ or Python source."""
    if name.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                yield node.lineno, ast.get_docstring(node).splitlines()[0]
        return
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*///? ?(\S.*)", line)
        if match and line.lstrip().startswith("///") and not before.startswith("///"):
            yield number, match.group(1)
        before = line.lstrip()


def subjectless(texts):
    """(path, line, comment) of every doc comment that begins without a subject."""
    for name, text in texts.items():
        if name.split("/")[0] not in ("src", "include", "cli", "plugins", "python"):
            continue
        if pathlib.PurePosixPath(name).suffix not in cxx.SUFFIXES | {".py"}:
            continue
        for line, comment in doc_comments(name, text):
            if SUBJECTLESS.match(comment):
                yield name, line, comment


def private_words(texts):
    """(path, line, word) of every private word in sources and pages."""
    for name, text in texts.items():
        suffix = pathlib.PurePosixPath(name).suffix
        is_source = suffix in SOURCE_SUFFIXES and not name.startswith(
            ("tools/", "bench/", "tests/tools/")
        )
        if not (is_source or is_page(name) or name.endswith("README.md")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in PRIVATE_WORDS.finditer(line):
                yield name, number, match.group(0)


def row_interface_virtuals(texts):
    """Virtual functions, destructors aside, of the interfaces that move rows."""
    count = 0
    for name, text in texts.items():
        if not re.fullmatch(r"(src|include)/.*\.hpp", name):
            continue
        for interface in ROW_INTERFACES:
            match = re.search(rf"^class {interface} {{(.*?)^}};", text, re.M | re.S)
            count += len(re.findall(r"\bvirtual (?!~)", match.group(1))) if match else 0
    return count


def executor_lines(texts):
    """Lines of the sources of src/runtime that run a pass: all but those of shards, of starting
    ranks and of refusals.
    """
    others = r"shard|run_ranks|check_|tensors/check_"
    return sum(
        text.count("\n")
        for name, text in texts.items()
        if re.fullmatch(rf"src/runtime/(?!{others}).*\.(cpp|hpp|cu|cuh)", name)
    )


def subsystem_lines(texts):
    """By subsystem, its lines of sources and of tests."""
    lines = {name: [0, 0] for name, _ in SUBSYSTEMS}
    for path, text in texts.items():
        if pathlib.PurePosixPath(path).suffix in SOURCE_SUFFIXES:
            owner = next(name for name, pattern in SUBSYSTEMS if re.match(pattern, path))
            lines[owner][path.startswith("tests/")] += text.count("\n")
    return lines


def figures(texts):
    """Rows for tools/record; texts: by path from the root, of every tracked text file."""
    files, _ = largest_folder(texts)
    return [
        ("house.src_lines", count_lines(texts, "src"), "lines"),
        ("house.test_lines", count_lines(texts, "tests"), "lines"),
        ("house.python_lines", count_lines(texts, "python"), "lines"),
        ("house.docs_words", count_words(texts), "words"),
        ("house.largest_flat_folder", files, "files"),
        ("house.comments_without_subject", len(list(subjectless(texts))), "comments"),
        ("house.private_words", len(list(private_words(texts))), "words"),
        ("house.row_interface_virtuals", row_interface_virtuals(texts), "functions"),
        ("house.executor_lines", executor_lines(texts), "lines"),
    ]


def describe(texts):
    """The table of subsystems and the places behind the counts, as lines of text."""
    yield f"{'subsystem':32}{'sources':>9}{'tests':>9}"
    for name, (sources, tests) in subsystem_lines(texts).items():
        yield f"{name:32}{sources:9}{tests:9}"
    files, folder = largest_folder(texts)
    yield f"largest flat folder: {folder}, {files} files"
    for kind, found in (("no subject", subjectless(texts)), ("private", private_words(texts))):
        for name, line, words in found:
            yield f"{name}:{line}: {kind}: {words}"
