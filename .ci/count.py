"""Counts the lines of Rust and SQL that are neither blank, comment nor test, crate by crate.

    python3 .ci/count.py            # the tree as it is
    python3 .ci/count.py --files    # and each file

Tests are files under `tests`, `benches` and `examples`, files named `tests.rs` or `*_tests.rs`,
and `#[cfg(test)] mod … { … }` blocks. The load generator is counted separately.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def is_test(path: pathlib.Path) -> bool:
    parts = path.relative_to(ROOT).parts
    inside = {"tests", "benches", "examples"} & set(parts[:-1])
    return bool(inside) or path.stem == "tests" or path.stem.endswith("_tests")


def without_tests(text: str) -> list[str]:
    """Returns the lines of a file without its `#[cfg(test)]` modules, which are at its end."""
    lines, kept, at = text.splitlines(), [], 0
    while at < len(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if lines[at].strip() == "#[cfg(test)]" and re.match(r"\s*(pub\S* )?mod \w+ \{", following):
            indent = len(following) - len(following.lstrip())
            at += 2
            while at < len(lines) and lines[at] != " " * indent + "}":
                at += 1
        else:
            kept.append(lines[at])
        at += 1
    return kept


def count(path: pathlib.Path) -> tuple[int, int]:
    code = comments = 0
    for line in without_tests(path.read_text()):
        line = line.strip()
        if line.startswith("--" if path.suffix == ".sql" else "//"):
            comments += 1
        elif line:
            code += 1
    return code, comments


def main() -> None:
    totals: dict[str, list[int]] = {}
    for path in sorted([*ROOT.glob("crates/**/*.rs"), *ROOT.glob("crates/**/*.sql")]):
        if is_test(path) or "target" in path.parts:
            continue
        parts = path.relative_to(ROOT).parts
        crate = "bench (not shipped)" if parts[1] == "bench" else parts[1]
        code, comments = count(path)
        row = totals.setdefault(crate, [0, 0, 0])
        row[0] += 1
        row[1] += code
        row[2] += comments
        if "--files" in sys.argv:
            print(f"{code:6} {comments:6}  {path.relative_to(ROOT)}")
    shipped = [row for crate, row in totals.items() if crate != "bench (not shipped)"]
    for crate, (files, code, comments) in sorted(totals.items()):
        print(f"{crate:20} {files:4} files {code:6} code {comments:6} comments")
    files, code, comments = (sum(row[at] for row in shipped) for at in range(3))
    share = 100 * comments / (code + comments)
    print(f"{'shipped':20} {files:4} files {code:6} code {comments:6} comments ({share:.1f} %)")


main()
