"""Numbers on the pages are those of docs/results, and the front page is of today."""

import re
import sys

import pytest

from tests import pages
from tests.test_architecture import ROOT

sys.path.insert(0, str(pages.DOCS / "_ext"))

import families_table
import front_page
import measured

REPOSITORY = ROOT.parent
RIGHT = "below_one_pass > cost > 10,000 > rows per test"


@pytest.mark.parametrize("path", measured.PAGES, ids=lambda path: path.stem)
def test_every_number_is_that_of_a_file(path):
    """Else run ``python docs/_ext/measured.py``."""
    text = path.read_text(encoding="utf-8")
    assert "{measured}" not in text
    measured.checked(text)


def test_there_are_numbers():
    text = "".join(path.read_text(encoding="utf-8") for path in measured.PAGES)
    assert len(measured.MARK.findall(text)) > 100


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (RIGHT.replace("below", "above"), r"no above_one_pass\.json"),
        (RIGHT.replace("cost", "price"), "no section price"),
        (RIGHT.replace("10,000", "10,001"), "0 times the row '10,001'"),
        (RIGHT.replace("rows per", "columns per"), "0 times 'columns per test'"),
        (RIGHT.replace("cost > 10,000", "logistic > 100,000"), "6 times the row"),
        (RIGHT.replace(" > rows per test", ""), "is not file > section > row > column"),
        (RIGHT.replace("10,000", "least & 10,001"), "0 times the row"),
        (f"{RIGHT}; many", "neither a number of digits"),
        (f"{RIGHT}; low", "is no range"),
        ("below_one_pass > logistic > checks > NUTS / NUTS", "0 times the ratio"),
        (
            "hierarchies > learned_coordinates > eight schools & NUTS > over seeds",
            "is '.*', no number",
        ),
        ("hierarchies > learned_coordinates > greatest > over seeds", "is '-', no number"),
        (f"{RIGHT} ÷ {RIGHT.replace('10,000', '10,001')}", "0 times the row"),
    ],
)
def test_a_missing_number_fails(reference, message):
    with pytest.raises(measured.MissingNumberError, match=message):
        measured.number(reference)


def test_numbers_are_written_with_their_digits(monkeypatch):
    table = {
        "columns": ["who", "`x`", "y"],
        "rows": [["a", 46.7609, "0.1 to 0.3"], ["b", 306_421.0, "1"], ["b", 0.00499, 2]],
        "checks": [["b / a", 0.0996, 1.0]],
    }
    monkeypatch.setattr(measured, "results", lambda name: {"s": table})
    expected = {
        "f > s > a > x": "47",
        "f > s > a > x; 3": "46.8",
        "f > s > b & 1 > x": "310,000",
        "f > s > b & 2 > x": "0.0050",
        "f > s > a > y; text": "0.1 to 0.3",
        "f > s > a > y; high": "0.3",
        "f > s > checks > b / a": "0.10",
        "f > s > checks > b / a; %": "10 %",
        "f > s > a > x ÷ f > s > b & 1 > y": "47",
        "100 ÷ f > s > a > x": "2.1",
        "f > s > least > x": "0.0050",
        "f > s > greatest & b > x; 1": "300,000",
        "f > s > b & 2 > x / y": "0.0025",
        "f > s > greatest > x / y": "310,000",
    }
    assert {reference: measured.number(reference) for reference in expected} == expected
    table["date"] = "2026-11-21"
    day = "in 2026, 2026-01-01<!-- = f > s > date; text -->"
    assert measured.plain_text(day) == "in 2026, 2026-11-21"
    page = "from 1 to 0<!-- = f > s > a > x --> rows, 0<!-- = f > s > a > y; text -->"
    page += ", 9 %<!-- = f > s > checks > b / a; % -->"
    assert measured.plain_text(page) == "from 1 to 47 rows, 0.1 to 0.3, 10 %"
    today = measured.rewritten(page)
    assert today.startswith("from 1 to 47<!-- = f > s > a > x --> rows, 0.1 to 0.3<!-- ")
    assert measured.rewritten(today) == today
    assert measured.checked(today).startswith("from 1 to {measured}`f > s > a > x` rows, {meas")
    for wrong in (page, today.replace("47", "48"), today.replace("0.1 to", "0.2 to")):
        with pytest.raises(measured.MissingNumberError, match="today"):
            measured.checked(wrong)


def test_pages_say_when_their_numbers_were_measured(monkeypatch):
    """At the end, with a link to the defaults that have changed since."""
    sections = {"old": {"date": "2026-11-21"}, "new": {"date": "2027-01-01"}}
    monkeypatch.setattr(measured, "results", lambda name: sections)
    old, new = (f"1<!-- = f > {name} > row > column -->" for name in sections)
    assert measured.dated("# Title\n\nText\n", "page") == "# Title\n\nText\n"
    assert measured.dated(f"# Title\n\n{new}\n", "page") == (
        f"# Title\n\n{new}\n\n*Numbers on this page were measured on 2027-01-01.*\n"
    )
    changed = "since 2026-11-21 [some defaults have changed](../results.md#changed-defaults)"
    assert measured.dated(f"# Title\n\n{old}\n", "a/page").splitlines()[-1] == (
        f"*Numbers on this page were measured on 2026-11-21; {changed}.*"
    )
    tables = "# Title\n\n- [Tables](../results/f.md)\n"
    assert "from 2026-11-21 to 2027-01-01; since" in measured.dated(tables, "a/page")
    assert "## Changed defaults" in (pages.DOCS / "results.md").read_text(encoding="utf-8")


def test_the_build_fails_on_a_missing_number():
    pytest.importorskip("sphinx")
    from sphinx.errors import ExtensionError

    class Document:
        current_source = "page.md"

    class Inliner:
        document = Document()

    with pytest.raises(ExtensionError, match=r"page\.md, line 3: .*no section"):
        measured.role("measured", "raw", RIGHT.replace("cost", "price"), 3, Inliner())
    with pytest.raises(ExtensionError, match=r"page: '1' is '.*' today"):
        measured.read(None, "page", [f"1<!-- = {RIGHT} -->"])


# --- front page -----------------------------------------------------------------------------------

README = REPOSITORY / "README.md"


def test_tables_of_the_readme_are_of_today():
    """Else run ``python docs/_ext/front_page.py``."""
    assert README.read_text(encoding="utf-8") == front_page.readme()


def test_the_readme_is_short():
    """Lines that can be read where the code is hosted, and rows of at most forty words."""
    text = README.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 300
    (choice,) = (found[3] for found in front_page.BLOCK.finditer(text) if found[2] == "choice")
    rows = re.findall(r"^\| (?!your problem|---)(.*) \|$", choice, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        assert len(re.sub(r"\]\[choice \d+\]", "", row).replace("|", " ").split()) <= 40, row


@pytest.mark.long
def test_table_of_the_families_is_of_today():
    """Else run ``python docs/_ext/families_table.py``."""
    assert families_table.PAGE.read_text(encoding="utf-8") == families_table.page()


def test_links_of_the_readme_work_where_the_code_is_hosted():
    readme = README.read_text(encoding="utf-8")
    links = re.findall(r"\](?:\(|: )(?!http)([^)#\s]+)(?:#([^)\s]+))?\)?", readme)
    assert len(links) > 20
    for name, anchor in links:
        assert (REPOSITORY / name).is_file(), name
        if not name.endswith(".md"):
            continue
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert not anchor or anchor in map(front_page.slug, headings), f"{name}#{anchor}"


def test_the_first_example_is_that_of_the_readme():
    assert next(pages.blocks("index")).text == next(pages.blocks("../README")).text


def test_examples_of_the_readme_run(capsys):
    first, second = pages.blocks("../README")
    found = first.run({})
    tau = found["mcmc"].get_samples()["tau"]
    assert abs((tau < 1).mean() - 0.200) < 0.03
    assert f"P(tau < 1) = {(tau < 1).mean():.3f}" in capsys.readouterr().out
    second.run({})
    assert 0.0 < float(capsys.readouterr().out.split()[-1]) < 1.0


def test_pages_of_results_only_include_them():
    written = sorted((pages.DOCS / "measurements").glob("*.md"))
    texts = {page.stem: page.read_text() for page in (pages.DOCS / "results.md", *written)}
    included = re.findall(r"^- \[.*\]\(\.\./results/(\w+)\.md\)$", "".join(texts.values()), re.M)
    assert sorted(included) == sorted(path.stem for path in (pages.DOCS / "results").glob("*.md"))
    named = re.findall(r"^measurements/(\w+)$", texts.pop("results"), re.MULTILINE)
    assert sorted(named) == sorted(texts)
    for text in texts.values():
        prose = re.sub(r"```.*?```", "", measured.replaced(text, lambda *_: ""), flags=re.DOTALL)
        assert not re.search(r"\d", prose)
