"""The page, without a browser: what each address returns, saves and refuses."""

import io
import json
import re
import uuid
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fewtags.formats.answers import read_answers
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan
from fewtags.review import pictures
from fewtags.review.app import AHEAD
from fewtags.review.pictures import PhotoId
from fewtags.review.retrain import score
from fewtags.review.review import opened
from fewtags.review.scoring import Found
from fewtags.review.store import AnswerStore
from fewtags.table.answered import with_answers
from fewtags.table.storage import load


def request():
    return uuid.uuid4().hex


def answer(browser, question, word, *, regions=(), request_id=None):
    one = {"photo": question["photo"], "class": question["class"], "answer": word, "seconds": 1.5, "shown": {"a": 1}}
    body = {"request": request_id or request(), "answers": [one], "regions": [list(r) for r in regions]}
    return browser.post("/api/answer", json=body)


def next_one(browser, **params):
    return browser.get("/api/next", params={"count": 1, **params}).json()["questions"][0]


def content(page, id="content"):
    return json.loads(re.search(rf'id="{id}">(.*?)</script>', page.text, re.DOTALL)[1])


def test_every_address_needs_the_token(visit, review):
    stranger = visit(token=False)
    for path in ("/", "/photo", "/api/next", "/api/status", "/static/app.css", "/picture/0", "/?token=wrong"):
        reply = stranger.get(path)
        assert reply.status_code == 403, path
        assert review.token not in reply.text
    assert stranger.post("/api/retrain", json={"request": request()}).status_code == 403
    reply = stranger.get("/photo", params={"token": review.token}, follow_redirects=False)
    assert (reply.status_code, reply.headers["location"]) == (303, "/photo")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert (review.folder / "token").stat().st_mode & 0o077 == 0


def test_no_page_can_load_anything_from_elsewhere(visit):
    reply = visit().get("/photo")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert not re.findall(r"https?:", policy)
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", reply.text)


def test_the_photo_page_has_questions_with_evidence(visit, review):
    page = content(visit().get("/photo"))
    assert len(page["questions"]) == AHEAD
    first = page["questions"][0]
    assert 0 <= first["probability"] <= 1
    assert re.match(r"ranked \d+(st|nd|rd|th) for '\w+' among", first["reason"])
    # A map whose upper half of the range is everywhere has no box.
    x0, y0, x1, y1 = next(question["box"] for question in page["questions"] if question["box"])
    assert 0 <= x0 < x1 <= 1
    assert 0 <= y0 < y1 <= 1
    assert (first["mine"], first["others"], first["regions"]) == (None, {}, [])
    assert len(first["known"]) == 1
    assert {c["id"] for c in page["classes"]} == set(review.info.class_ids)


def test_an_answer_is_saved_and_not_asked_again(visit, run):
    browser = visit()
    question = next_one(browser)
    reply = answer(browser, question, "yes", regions=[(0.25, 0.25, 0.75, 0.5)])
    assert reply.status_code == 200
    assert reply.json()["progress"] | {"questions": 0} == reply.json()["progress"] | {
        "questions": 0,
        "mine": 1,
        "all": 1,
    }
    (table,) = read_answers(run)
    assert table.images.to_pylist() == [question["image"]]
    assert table.locations.boxes.tolist() == [[0.25, 0.25, 0.75, 0.5]]
    asked = {(q["photo"], q["class"]) for q in browser.get("/api/next", params={"count": 200}).json()["questions"]}
    assert (question["photo"], question["class"]) not in asked
    about = browser.get(f"/api/about/{question['photo']}", params={"class": question["class"]}).json()
    assert (about["mine"], about["regions"]) == ("yes", [[0.25, 0.25, 0.75, 0.5]])


def test_a_repeated_request_is_saved_once(visit):
    browser = visit()
    question = next_one(browser)
    replies = [answer(browser, question, "no", request_id="the-same-request").json() for _ in range(3)]
    assert {reply["step"] for reply in replies} == {1}
    assert replies[-1]["progress"]["mine"] == 1


def test_undo_returns_the_question(visit):
    browser = visit()
    questions = browser.get("/api/next", params={"count": 3}).json()["questions"]
    for question in questions:
        answer(browser, question, "no")
    for question in reversed(questions):
        undone = browser.post("/api/undo", json={"request": request()}).json()["undone"]
        assert [(u["photo"], u["class"], u["mine"]) for u in undone] == [(question["photo"], question["class"], None)]
    assert browser.post("/api/undo", json={"request": request()}).json()["step"] is None
    assert next_one(browser)["photo"] == questions[0]["photo"]


def test_two_people_get_different_questions(visit):
    ann, bob = visit(), visit()
    ours = [
        {(q["photo"], q["class"]) for q in browser.get("/api/next", params={"count": 20}).json()["questions"]}
        for browser in (ann, bob)
    ]
    assert len(ours[0]) == len(ours[1]) == 20
    assert not ours[0] & ours[1]
    again = ann.get("/api/next", params={"count": 20}).json()["questions"]
    assert {(q["photo"], q["class"]) for q in again} == ours[0]  # a reloaded page shows the same


def test_disagreement_is_shown_and_unknown(visit, run):
    ann, bob = visit(), visit()
    for browser, name in ((ann, "Ann"), (bob, "Bob <b>")):
        assert browser.post("/api/name", json={"request": request(), "text": name}).json() == {"who": name}
    question = next_one(ann)
    answer(ann, question, "yes")
    assert answer(bob, question, "no").json()["progress"]["disputed"] == 1
    about = ann.get(f"/api/about/{question['photo']}", params={"class": question["class"]}).json()
    assert (about["mine"], about["others"]) == ("yes", {"Bob <b>": "no"})
    (table,) = read_answers(run)
    assert not table.matrix.dense().any()


def test_someone_else_may_answer_what_one_is_unsure_about(visit):
    ann, bob = visit(), visit()
    question = next_one(ann)
    answer(ann, question, "unsure")
    assert next_one(ann)["photo"] != question["photo"] or next_one(ann)["class"] != question["class"]
    found = next_one(bob)
    assert (found["photo"], found["class"]) == (question["photo"], question["class"])


def test_skipped_questions_come_last(visit):
    browser = visit()
    one_class = next_one(browser)["class"]
    every = browser.get("/api/next", params={"count": 200, "class": one_class}).json()["questions"]
    browser.post("/api/skip", json={"request": request(), "cells": [{"photo": every[0]["photo"], "class": one_class}]})
    after = browser.get("/api/next", params={"count": 200, "class": one_class}).json()["questions"]
    assert [q["photo"] for q in after] == [q["photo"] for q in [*every[1:], every[0]]]


def test_a_new_class_with_a_hostile_name(visit, run):
    browser, name = visit(), "</script><img src=x onerror=alert(1)> \u202e\"'&"
    made = browser.post("/api/class", json={"request": request(), "text": name}).json()["class"]
    question = next_one(browser)
    assert answer(browser, {**question, "class": made}, "yes").status_code == 200
    for path in ("/", "/photo"):
        text = browser.get(path).text
        assert "<img src=x" not in text
        assert "</script><img" not in text
    assert made in {c["id"] for c in content(browser.get("/photo"))["classes"]}
    assert read_answers(run)[0].classes.ids == (made,)
    again = browser.post("/api/class", json={"request": request(), "text": name.upper()}).json()
    assert again["class"] == made
    empty = browser.post("/api/class", json={"request": request(), "text": " "})
    assert (empty.status_code, empty.json()["error"]) == (400, "the name of a class has 1 to 200 characters, not 0.")


def test_a_wall_is_one_step(visit, run):
    browser = visit()
    one_class = next_one(browser)["class"]
    wall = content(browser.get("/wall", params={"class": one_class}))
    assert {q["class"] for q in wall["questions"]} == {one_class}
    assert 0 < len(wall["questions"]) <= 30
    words = ["no", "unsure", *["yes"] * (len(wall["questions"]) - 2)]
    answers = [
        {"photo": q["photo"], "class": one_class, "answer": word, "seconds": 0.5}
        for q, word in zip(wall["questions"], words, strict=True)
    ]
    assert browser.post("/api/answer", json={"request": request(), "answers": answers}).status_code == 200
    (table,) = read_answers(run)
    assert sorted(table.matrix.dense()[:, 0].tolist()) == [-1, 0, *[1] * (len(words) - 2)]
    undone = browser.post("/api/undo", json={"request": request()}).json()["undone"]
    assert [u["photo"] for u in undone] == [q["photo"] for q in wall["questions"]]
    again = content(browser.get("/wall", params={"class": one_class}))
    assert [q["photo"] for q in again["questions"]] == [q["photo"] for q in wall["questions"]]


def test_the_answers_page_lists_disputes_and_links_to_them(visit):
    ann, bob = visit(), visit()
    question = next_one(ann)
    answer(ann, question, "yes")
    answer(bob, question, "no")
    page = ann.get("/answers").text
    assert "People disagree about 1" in page
    assert re.search(r"reviewer 1: <b class=\"yes-text\">yes</b>,\s+reviewer 2: <b class=\"no-text\">no</b>", page)
    link = re.search(r'href="(/photo\?[^"]+)"', page)[1].replace("&amp;", "&")
    one = content(ann.get(link))["one"]
    assert (one["photo"], one["class"], one["mine"]) == (question["photo"], question["class"], "yes")


def test_suspicious_labels_are_a_mode_of_their_own(visit, review, run, trained):
    browser = visit()
    before = (trained / "train.csv").read_bytes()
    assert f"{len(review.doubts)} labels of your files contradict the model" in browser.get("/").text
    page = content(browser.get("/labels"))
    first, second = page["questions"][:2]
    assert first["label"] == "positive"
    assert first["reason"].startswith(f"labelled {first['name']!r}, but ")
    assert len(first["box"]) == 4
    assert first["name"] in first["known"]
    asked = {(q["photo"], q["class"]) for q in browser.get("/api/next", params={"count": 200}).json()["questions"]}
    assert (first["photo"], first["class"]) not in asked
    answer(browser, first, "no")
    answer(browser, second, "yes")
    after = browser.get("/api/next", params={"count": 1, "labels": True}).json()["questions"]
    assert after[0]["photo"] == page["questions"][2]["photo"]
    assert "2 checked, 1 of them wrong" in browser.get("/").text
    (answers,) = read_answers(run)
    table = with_answers({"train": load(run / "tables" / "train.parquet")}, [answers])["train"]
    states = dict(zip(table.images.to_pylist(), table.matrix.dense(), strict=True))
    place = review.info.class_ids.index(first["class"])
    assert states[first["image"]][place] == -1
    assert "1 label contradicts an answer, which counts" in [listed.message for listed in table.notes.lists]
    assert (trained / "train.csv").read_bytes() == before
    browser.post("/api/undo", json={"request": request()})
    browser.post("/api/undo", json={"request": request()})
    assert review.label_counts() == {"open": len(review.doubts), "checked": 0, "wrong": 0}


def test_a_label_is_checked_by_one_person_at_a_time(visit):
    ann, bob = visit(), visit()
    ours = [browser.get("/api/next", params={"count": 1, "labels": True}).json()["questions"] for browser in (ann, bob)]
    assert ours[0][0]["photo"] != ours[1][0]["photo"]
    skipped = {"photo": ours[0][0]["photo"], "class": ours[0][0]["class"]}
    ann.post("/api/skip", json={"request": request(), "cells": [skipped]})
    again = ann.get("/api/next", params={"count": 1, "labels": True}).json()["questions"]
    assert again[0]["photo"] != skipped["photo"]


def test_an_answer_that_a_later_model_contradicts_is_not_a_label_of_the_files(review):
    (asked,) = review.doubts.next("session", "ann", 1)
    answered = replace(asked.question, state="negative")  # the files say positive
    review.scoring._publish(Found(suspicious=[answered, asked.question]), True)
    assert [one.question for one in review.doubts.next("session", "ann", 9)] == [asked.question]


def test_progress_says_what_answers_are_expected_to_buy(visit, review):
    browser = visit()
    for question in browser.get("/api/next", params={"count": 20}).json()["questions"]:
        progress = answer(browser, question, "no").json()["progress"]
    found = progress["forecast"]
    assert (found["answers"], found["trained"]["value"]) == (0, score(review.run).value)
    assert found["trained"]["value"] < found["now"]["value"] < found["more"]["value"]
    assert 0 < found["hour"] < 0.037
    assert (found["stop"], found["stop_below"]) == (100 * found["hour"] < 0.5, 0.5)
    review.stop_below = 4.0
    assert browser.get("/api/status").json()["progress"]["forecast"]["stop"]


def test_notes(visit):
    browser = visit()
    question = next_one(browser)
    browser.post("/api/note", json={"request": request(), "photo": question["photo"], "text": " <i>dark</i> "})
    assert next_one(browser)["note"] == "<i>dark</i>"


def test_pictures_are_made_and_kept(visit, review):
    browser = visit()
    question = next_one(browser)
    with Image.open(io.BytesIO(browser.get(f"/picture/{question['photo']}", params={"side": 320}).content)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (64, 64))
    box = ",".join(map(str, question["box"] or (0.25, 0.25, 0.75, 0.5)))
    with Image.open(io.BytesIO(browser.get(f"/crop/{question['photo']}", params={"box": box}).content)) as picture:
        assert max(picture.size) == 256
    assert len([*(review.folder / "pictures").rglob("*.jpg")]) == 2
    reply = browser.get(f"/heat/{question['photo']}", params={"class": question["class"]})
    with Image.open(io.BytesIO(reply.content)) as picture:
        assert picture.mode == "RGBA"
        opacity = np.asarray(picture)[:, :, 3]
        assert (opacity.min(), opacity.max()) == (0, 150)


def test_a_crop_of_another_rule_is_made_anew(visit, review, monkeypatch):
    """An older version cut out less around the same box, and its pictures are in the folder of the review."""
    browser = visit()
    address = f"/crop/{next_one(browser)['photo']}?box=0.4,0.4,0.5,0.5"
    with monkeypatch.context() as older_rule:
        older_rule.setattr(pictures, "SMALLEST_CROP", 0.3)
        older = browser.get(address).content
    newer = browser.get(address).content
    assert newer != older
    assert browser.get(address).content == newer


def test_a_model_without_maps_offers_no_heatmap(visit, review, monkeypatch):
    """The head of a class token gives one number for each class."""
    browser = visit()
    assert next_one(browser)["heat"] is True
    monkeypatch.setattr(review, "info", replace(review.info, head=HeadPlan(pool=Pool("class_token"))))
    assert next_one(browser)["heat"] is False


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/picture/../../etc/passwd", 404),
        ("/picture/unknown", 404),
        ("/picture/PHOTO?side=31337", 400),
        ("/crop/PHOTO?box=1,2,3", 400),
        ("/crop/PHOTO?box=0,0,2,1", 400),
        ("/crop/PHOTO?box=nan,0,1,1", 400),
        ("/heat/PHOTO?class=unknown", 400),
        ("/static/../app.py", 404),
    ],
)
def test_bad_addresses(visit, path, status):
    browser = visit()
    reply = browser.get(path.replace("PHOTO", next_one(browser)["photo"]))
    assert reply.status_code == status


@pytest.mark.parametrize(
    "change",
    [
        {"answers": []},
        {"regions": [[0.5, 0.5, 0.4, 0.6]]},
        {"regions": [[0.5, 0.4, 0.5, 0.6]]},
        {"regions": [[0, 0, 1, 1.5]]},
        {"request": "short"},
        {"more": 1},
    ],
)
def test_bad_answers_save_nothing(visit, review, change):
    browser = visit()
    question = next_one(browser)
    one = {"photo": question["photo"], "class": question["class"], "answer": "yes"}
    body = {"request": request(), "answers": [one], **change}
    assert browser.post("/api/answer", json=body).status_code == 422
    for key in ("photo", "class"):
        assert (
            browser.post("/api/answer", json={"request": request(), "answers": [{**one, key: "x"}]}).status_code == 404
        )
    assert review.store.totals() == (0, 0.0)


def test_a_photo_that_cannot_be_read(visit, review, tmp_path, monkeypatch):
    browser = visit()
    question = next_one(browser)
    place = review.photos.find(question["photo"])
    (tmp_path / "away").mkdir()
    monkeypatch.setattr(review.photos, "find", lambda _: PhotoId(str(tmp_path / "away"), place.image))
    reply = browser.get(f"/picture/{question['photo']}")
    assert reply.status_code == 400
    assert "does not exist" in reply.json()["error"] or "no such file" in reply.json()["error"].lower()


def test_a_page_that_was_open_before_a_restart_still_gets_its_photos(run):
    """A new server has shown no photo yet; all photos of the table may be asked for, and no others."""
    with opened(run, cpu=True) as before:
        id = before.next("ann", "ann", 1, None, labels=False)[0]["photo"]
    with opened(run, cpu=True) as after:
        assert len(after.photos) == 24
        assert after.photos.find(id).id == id
        assert after.photos.find("0" * 18) is None


def test_a_restarted_server_knows_the_browser_and_goes_on(visit, review, run):
    browser = visit()
    browser.post("/api/name", json={"request": request(), "text": "Ann"})
    question = next_one(browser)
    answer(browser, question, "yes")
    cookies = dict(browser.cookies)
    review.close()
    again = AnswerStore(run / "answers.sqlite")
    review.store = again  # what a new process does
    review.queue._store = again
    other = visit(token=False)
    other.cookies.update(cookies)
    page = other.get("/photo")
    assert [(q["photo"], q["mine"]) for q in content(page)["history"]] == [(question["photo"], "yes")]
    assert content(page, "progress-data")["mine"] == 1


def test_walls_without_a_class_tour_the_classes(visit, review):
    """The first open question decides the class; the wall after this one is told in advance, and then comes."""
    browser = visit()
    first = next_one(visit())  # somebody else looks at the first question
    wall = content(browser.get("/wall"))
    assert wall["tour"]
    assert {q["class"] for q in wall["questions"]} == {wall["class"]}
    assert first["photo"] not in {q["photo"] for q in wall["questions"] if q["class"] == first["class"]}
    ahead = browser.get("/api/wall", params={"after": wall["class"]}).json()
    assert ahead["class"] != wall["class"] or len(wall["questions"]) == 30
    answers = [{"photo": q["photo"], "class": q["class"], "answer": "no"} for q in wall["questions"]]
    browser.post("/api/answer", json={"request": request(), "answers": answers})
    following = browser.get("/api/wall").json()
    assert (following["class"], following["questions"]) == (ahead["class"], ahead["questions"])


def test_the_wall_after_the_last_of_a_class_is_empty(visit, review):
    browser = visit()
    one_class = review.info.class_ids[0]
    found = browser.get("/api/wall", params={"class": one_class, "after": one_class}).json()
    assert (found["class"], found["questions"]) == (one_class, [])


def test_an_undone_wall_says_what_was_answered(visit, review):
    browser = visit()
    wall = content(browser.get("/wall"))["questions"][:3]
    words = ("no", "yes", "unsure")
    answers = [{"photo": q["photo"], "class": q["class"], "answer": word} for q, word in zip(wall, words, strict=True)]
    browser.post("/api/answer", json={"request": request(), "answers": answers})
    undone = browser.post("/api/undo", json={"request": request()}).json()["undone"]
    assert [(q["photo"], q["said"], q["mine"]) for q in undone] == [
        (q["photo"], word, None) for q, word in zip(wall, words, strict=True)
    ]
