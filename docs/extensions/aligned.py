"""Reads our docstrings as Markdown: aligned lists of parameters become lists, `>>>` lines become code."""

import re

import griffe

_ITEM = re.compile(r"^(\w[\w, .`*]*?)\s{2,}(\S.*)$")


class Aligned(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    lines: list[str] = []
    in_item = in_code = False
    for line in text.splitlines():
        shown = line.startswith((">>>", "..."))
        if shown != in_code:
            lines += ["", "```pycon"] if shown else ["```", ""]
            in_code = shown
        found = None if shown else _ITEM.match(line)
        if found is not None:
            if not in_item:
                lines.append("")
            names = ", ".join(f"`{name.strip('` ')}`" for name in found[1].split(","))
            lines.append(f"- {names}: {found[2]}")
            in_item = True
        elif in_item and line.startswith("  ") and line.strip():
            lines[-1] += f" {line.strip()}"
        else:
            if in_item and line.strip():
                lines.append("")
            in_item = False
            lines.append(line)
    return "\n".join([*lines, "```"] if in_code else lines)
