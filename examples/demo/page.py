"""One page of HTML with all chapters in it, which a browser opens without a network."""

import base64
from html import escape
from pathlib import Path

from examples.demo.chapter import Chapter, Results

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
pre { overflow-x: auto; padding: 0.8rem; background: #f6f6f6; font-size: 0.9em; }
li { margin-bottom: 0.4rem; }
"""
INTRODUCTION = (
    "Five reasons to use this package, each beside NUTS. Where NUTS or another method is better, "
    "the tables say so: on smooth posteriors whose gradient is cheap, use NUTS."
)


def write(path: Path, chapters: list[Chapter], facts: str) -> None:
    """Write the page: what came out of each chapter stands on top."""
    items = "".join(
        f'<li><a href="#c{i}">{escape(chapter.title)}</a>: '
        f"{escape(chapter.results.conclusion)}</li>"
        for i, chapter in enumerate(chapters, 1)
    )
    sections = "\n".join(section(i, chapter) for i, chapter in enumerate(chapters, 1))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>numpyro-fwd: a demonstration</title><style>{STYLE}</style></head>
<body><h1>What numpyro-fwd is for</h1><p>{escape(INTRODUCTION)}</p>
<ol>{items}</ol>
{sections}
<hr><p class="reading">{escape(facts)}</p></body></html>
"""
    path.write_text(page, encoding="utf-8")


def section(number: int, chapter: Chapter) -> str:
    """One chapter: its code is folded, and its picture embedded."""
    results, caption = chapter.results, escape(chapter.results.caption)
    data = base64.b64encode(chapter.picture.read_bytes()).decode()
    return f"""<section id="c{number}"><h2>{number}. {escape(chapter.title)}</h2>
<p>{escape(chapter.question)}</p>
<div class="wide">{html_table(results)}</div>
<p class="reading">{escape(results.reading)}</p>
<p class="said">{escape(results.conclusion)}</p>
<figure><div class="wide"><img alt="{caption}" src="data:image/png;base64,{data}"></div>
<figcaption>{caption}</figcaption></figure>
<details><summary>The model, and the line that changes</summary>
<pre><code>{escape(results.code)}</code></pre></details></section>"""


def html_table(results: Results) -> str:
    """The table of a chapter."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in results.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for cells in results.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
