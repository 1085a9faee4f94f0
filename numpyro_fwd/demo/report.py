"""The report: one page of HTML with everything in it, that a browser opens without a network."""

import base64
from html import escape
from pathlib import Path

from numpyro_fwd.demo.chapter import Chapter

__all__ = ["write"]

STYLE = """
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: #222; background: #fff;
       font: 1rem/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
figure { margin: 1rem 0; } img { width: 100%; min-width: 42rem; height: auto; }
figcaption, .reading { color: #555; font-size: 0.9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
th { background: #f3f3f3; vertical-align: bottom; }
.said { border-left: 4px solid #0072B2; padding-left: 0.8rem; }
@media (max-width: 30rem) { body { padding: 0.6rem; } h1 { font-size: 1.5rem; } }
code { font-size: 0.9em; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: 0.8rem; background: #f6f6f6; }
pre code { overflow-wrap: normal; }
li { margin-bottom: 0.4rem; }
"""
INTRODUCTION = (
    "Five reasons to use this package, each beside NUTS. Where NUTS or another method is better, "
    "the tables say so: on smooth posteriors whose gradient is cheap, use NUTS."
)


def write(path: Path, chapters: list[Chapter], facts: str) -> None:
    """Write the page; pictures lie in the same folder and are embedded."""
    bodies = "\n".join(section(i, chapter, path.parent) for i, chapter in enumerate(chapters, 1))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>numpyro-fwd: a demonstration</title><style>{STYLE}</style></head>
<body><h1>What numpyro-fwd is for</h1><p>{escape(INTRODUCTION)}</p>
{contents(chapters)}
{bodies}
<hr><p class="reading">{escape(facts)}</p></body></html>
"""
    path.write_text(page, encoding="utf-8")


def contents(chapters: list[Chapter]) -> str:
    """Links to the chapters, with what came out of each."""
    items = "".join(
        f'<li><a href="#c{i}">{escape(chapter.title)}</a>: {escape(chapter.conclusion)}</li>'
        for i, chapter in enumerate(chapters, 1)
    )
    return f"<ol>{items}</ol>"


def section(number: int, chapter: Chapter, folder: Path) -> str:
    """One chapter."""
    files = ", ".join(f"<code>{escape(name)}</code>" for name in chapter.files)
    draws = f'<p class="reading">Draws: {files} (<code>az.from_netcdf</code>).</p>' if files else ""
    return f"""<section id="c{number}"><h2>{number}. {escape(chapter.title)}</h2>
<p>{escape(chapter.question)}</p>
<div class="wide">{html_table(chapter)}</div>
<p class="reading">{escape(chapter.reading)}</p>
<p class="said">{escape(chapter.conclusion)}</p>
{figure(chapter, folder)}
{code(chapter)}
{draws}</section>"""


def code(chapter: Chapter) -> str:
    """The code of a chapter, folded."""
    if not chapter.code:
        return ""
    summary = "<summary>The model, and the line that changes</summary>"
    return f"<details>{summary}<pre><code>{escape(chapter.code)}</code></pre></details>"


def html_table(chapter: Chapter) -> str:
    """The table of a chapter."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in chapter.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for cells in chapter.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def figure(chapter: Chapter, folder: Path) -> str:
    """The picture of a chapter, embedded."""
    data = base64.b64encode((folder / chapter.picture).read_bytes()).decode()
    caption = escape(chapter.caption)
    return (
        f'<figure><div class="wide"><img alt="{caption}" src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
