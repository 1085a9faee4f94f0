"""Every notebook runs from top to bottom, and its outputs are committed.

Its runs are a tenth as long here: a solver in 120,000 steps of a random walk took seven minutes.
"""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
# what takes longest, boarding_school four minutes, of which an emulator takes most
LONG = "boarding_school", "curvature", "mixed_model", "partially_bayesian", "million_rows"
MAX_BYTES = 400_000
SHORTER = """
import numpyro.infer

class Shorter(numpyro.infer.MCMC):
    def __init__(self, *args, num_warmup, num_samples, **options):
        lengths = {"num_warmup": -(-num_warmup // 10), "num_samples": -(-num_samples // 10)}
        super().__init__(*args, **lengths, **options)

numpyro.infer.MCMC = Shorter
"""


@pytest.mark.slow
# nbclient and the kernel's manager, not the notebook, which runs in a process of its own
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.full] if path.stem in LONG else [], id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLION_ROWS", "20000")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SHORTER))
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_small_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info.name == "python"
    assert path.stat().st_size < MAX_BYTES
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_notebooks_are_there():
    assert {path.stem for path in NOTEBOOKS} >= {"boarding_school", "million_rows", "quickstart"}
