"""A review: the photos, questions, answers and pictures of one run, without the web."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final
from urllib.parse import urlencode

import numpy as np

from fewtags.config.parse import load_toml
from fewtags.engine.model import ModelInfo, read_info
from fewtags.engine.places import model_path
from fewtags.engine.run_lock import locked
from fewtags.engine.runfolder import TRAINING
from fewtags.errors import CheckpointError, DataError
from fewtags.formats.answers import ANSWERS_FILE, read_answers
from fewtags.formats.common import clean_name
from fewtags.labels import Label
from fewtags.review.asking import Asked, Queue
from fewtags.review.forecast import NEXT, STOP_BELOW, forecast
from fewtags.review.heat import HeatMaps
from fewtags.review.orders import DEFAULT_ORDER
from fewtags.review.pictures import PhotoId, PhotoSet, Pictures
from fewtags.review.questions import LIMIT, Question, check_order, run_table
from fewtags.review.retrain import Retraining, score
from fewtags.review.scoring import Found, Scoring
from fewtags.review.store import AnswerStore, CellKey
from fewtags.table.answered import answered, with_answers
from fewtags.table.table import LabelTable
from fewtags.table.vocabulary import folded

WORK_FOLDER = "review"
"""Folder in the run for everything that can be made again: pictures, questions, logs of training."""
TOKEN_FILE = "token"
LONGEST_NAME = 200


@final
@dataclass(frozen=True)
class ClassRow:
    """A class for the page: id, display name, open questions, and whether a person added it."""

    id: str
    name: str
    open: int
    new: bool = False


@final
class Review:
    """Everything that the page of one run needs. `opened` makes one.

    Attributes:
        run: the run whose answers are collected.
        queue: the questions about unknown cells.
        doubts: the labels that the model contradicts.
        model_run: the run whose model asks: `run`, or the last one that was trained from here.
        table: the photos, and what is known without the answers.
        token: the secret in the address of the page.
    """

    def __init__(
        self,
        run: Path,
        table: LabelTable,
        *,
        order: str | None = None,
        cpu: bool = False,
        stop_below: float = STOP_BELOW,
        own: bool = True,
    ) -> None:
        self.run, self.order, self.cpu, self.stop_below = run, order, cpu, stop_below
        self.folder = run / WORK_FOLDER
        self.store = AnswerStore(run / ANSWERS_FILE)
        self.queue = Queue(self.store)
        self.doubts = Queue(self.store)
        self.photos = PhotoSet(table)
        self.pictures = Pictures(self.folder / "pictures")
        self.retraining = Retraining(run, self.folder, cpu=cpu)
        self.token = _token(self.folder / TOKEN_FILE)
        self._changing = threading.Lock()
        self.model_run = run
        self.table = table
        before = answered(table)
        self._before = 0 if before is None else int(np.count_nonzero(before.dense()))
        # The simulations answered cells of the photos that the model learns from.
        self._cells = self._before + self._unknown(table) if own else 0
        self._rows = {key: row for row, key in enumerate(table.images.to_pylist())}
        self._checked: dict[CellKey, bool] = {}
        self.refresh([*self.store.answered()])
        trained = self.retraining.status()
        start = (
            Path(self.retraining.training.out) if self.retraining.training and trained["state"] == "finished" else run
        )
        self._use(start)

    def close(self) -> None:
        """End the processes that a review started, except training, and close the file of answers."""
        self.scoring.stop()
        self.store.close()

    # --- the model

    def _use(self, model_run: Path) -> None:
        """Ask with the model of a run about everything that nobody answered."""
        self.info: ModelInfo = read_info(model_path(model_run))
        self.model_run = model_run
        self._heat: HeatMaps | None = None
        folder = str(self.table.require_root().absolute())

        def publish(found: Found, all_: bool) -> None:
            # A later model contradicts answers, too; they are not labels of the files.
            labels = [
                s for s in found.suspicious if _word(self._given(PhotoId(folder, s.image)).get(s.class_)) == s.state
            ]
            for queue, ours in ((self.queue, found.questions), (self.doubts, labels)):
                (queue.load if all_ else queue.improve)([Asked(folder, one) for one in ours])

        table = self.table
        self._trained, self._measured = self._before, score(model_run)
        if (
            model_run != self.run
        ):  # with the answers that this model was trained with: a later start finds its questions
            steps = load_toml(model_run / TRAINING.settings).get("data", {}).get("answers_step") or [None]
            table = with_answers({"train": table}, read_answers(self.run, steps[-1]))["train"]
            self._trained += self._unknown(self.table) - self._unknown(table)
        self.scoring = Scoring(model_run, table, self.folder, publish, order=self.order, cpu=self.cpu)

    def _unknown(self, table: LabelTable) -> int:
        """Return the number of unknown cells of the photos and classes of the review in a table."""
        places = [table.classes.index(c) for c in self.table.classes.ids]
        return int(table.matrix.counts(Label.UNKNOWN)[places].sum()) - (len(table) - len(self.table)) * len(places)

    def use_new_model(self) -> bool:
        """Ask with the model that was trained from here, if there is a new one; return whether there was."""
        with self._changing:
            training = self.retraining.training
            if training is None or Path(training.out) == self.model_run:
                return False
            if self.retraining.status()["state"] != "finished":
                return False
            self.scoring.stop()
            self._use(Path(training.out))
            return True

    def heat(self, photo: PhotoId, class_id: str) -> bytes:
        """Return the heatmap of a class as PNG; the first call loads the model."""
        with self._changing:
            if self._heat is None:
                self._heat = HeatMaps(self.model_run, cpu=self.cpu)
            heat = self._heat
        return heat.picture(photo.path, class_id)

    # --- what the pages show

    def classes(self) -> list[ClassRow]:
        """Return all classes: those of the model, then those that people added."""
        counts = self.queue.open_counts()
        model = [
            ClassRow(i, n, counts.get(i, 0))
            for i, n in zip(self.info.class_ids, self.info.classes.display, strict=True)
        ]
        known = {*self.info.class_ids}
        return model + [ClassRow(name, name, 0, new=True) for name in self.store.new_classes() if name not in known]

    def name_of(self, class_id: str) -> str:
        """Return the display name of a class."""
        classes = self.info.classes
        return classes.display[classes.index(class_id)] if class_id in classes else class_id

    def knows_class(self, class_id: str) -> bool:
        """Whether a class is one of the model's, or was added."""
        return class_id in self.info.classes or class_id in self.store.new_classes()

    def add_class(self, who: str, name: str, request: str | None) -> str:
        """Add a class, and return its id; a class with this name in another spelling is used instead.

        Raises:
            DataError: the name is empty or too long.
        """
        plain = clean_name(name)
        if not plain or len(plain) > LONGEST_NAME:
            raise DataError(f"the name of a class has 1 to {LONGEST_NAME} characters, not {len(plain)}.")
        for row in self.classes():
            if folded(plain) in (folded(row.id), folded(row.name)):
                return row.id
        self.store.add_class(who, plain, request=request)
        return plain

    def about(self, photo: PhotoId, class_id: str, who: str) -> dict[str, Any]:
        """Return what is known about a cell, for the page."""
        cell = CellKey(photo.folder, photo.image, class_id)
        says = self.store.says(cell)
        found = self.queue.find(cell) or self.doubts.find(cell)
        asked = None if found is None else found.question
        given = self._given(photo)
        return {
            "photo": self.photos.show(photo),
            "image": photo.image,
            "class": class_id,
            "name": self.name_of(class_id),
            "probability": None if asked is None else round(asked.probability, 4),
            "reason": "" if asked is None else asked.reason,
            "box": None if asked is None else asked.box,
            "rank": asked.rank if isinstance(asked, Question) else None,
            "label": _word(given.get(class_id)),
            "mine": says.get(who),
            "others": {name: answer for name, answer in says.items() if name != who},
            "regions": self.store.regions(cell),
            "note": self.store.note_of(photo.folder, photo.image),
            "known": [self.name_of(c) for c, state in given.items() if state == Label.POSITIVE],
            "heat": class_id in self.info.classes and self.info.head.has_maps,
        }

    def _given(self, photo: PhotoId) -> dict[str, int]:
        """Return the states of the classes of a photo that are known without the answers."""
        row = self._rows.get(photo.image) if str(self.table.require_root().absolute()) == photo.folder else None
        if row is None:
            return {}
        labels = self.table.matrix.rows([row])[0]
        return {self.table.classes.ids[c]: int(labels[c]) for c in labels.nonzero()[0]}

    def next(self, who: str, session: str, count: int, class_: str | None, *, labels: bool) -> list[dict[str, Any]]:
        """Return the next questions for a session, or with `labels` the next suspicious labels; see `Queue.next`."""
        found = (self.doubts if labels else self.queue).next(session, who, count, class_)
        return [self.about(PhotoId(a.folder, a.question.image), a.question.class_, who) for a in found]

    def wall(
        self, who: str, session: str, count: int, class_: str | None, after: str | None = None
    ) -> tuple[str | None, list[dict[str, Any]]]:
        """Return a class and its next questions for a session.

        Without `class_`, it is the class of the first open question; None if there is none. With `after`, the session
        looks at a wall of this class now, and gets the wall that would come next.
        """
        shown = set() if after is None else {a.cell for a in self.queue.next(session, who, count, after)}
        if class_ is None:
            left = (a for a in self.queue.next(session, who, len(shown) + 1) if a.cell not in shown)
            if (first := next(left, None)) is None:
                return None, []
            class_ = first.question.class_
        found = self.queue.next(session, who, count + (len(shown) if class_ == after else 0), class_)
        return class_, [
            self.about(PhotoId(a.folder, a.question.image), class_, who) for a in found if a.cell not in shown
        ]

    def refresh(self, cells: Sequence[CellKey]) -> None:
        """Take note of cells whose answers changed."""
        self.queue.refresh(cells)
        self.doubts.refresh(cells)
        for cell in cells:
            given = self._given(PhotoId(cell.folder, cell.image)).get(cell.class_)
            says = {"yes": Label.POSITIVE, "no": Label.NEGATIVE}.get(self.store.state(cell) or "")
            if given is None or says is None:
                self._checked.pop(cell, None)
            else:
                self._checked[cell] = says != given

    def skip(self, session: str, cell: CellKey) -> None:
        """Ask a session about a cell later."""
        (self.queue if self.queue.find(cell) else self.doubts).skip(session, cell)

    def label_counts(self) -> dict[str, int]:
        """Return how many suspicious labels wait, how many labels people checked, and how many of these are wrong."""
        waiting = len(self.doubts) - self.doubts.answered
        return {"open": waiting, "checked": len(self._checked), "wrong": sum(self._checked.values())}

    def disputed_rows(self) -> list[dict[str, Any]]:
        """Return the cells about which people disagree, for the page of answers."""
        return [{**self._row(cell), "says": says} for cell, says in self.store.disputed()]

    def last_rows(self, limit: int = 60) -> list[dict[str, Any]]:
        """Return the last steps of all people, newest first, for the page of answers."""
        rows = []
        for step in self.store.history(limit=limit):
            cell, answer = step.cells[0]
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(step.at))
            more = len(step.cells) - 1
            rows.append({**self._row(cell), "answer": answer, "who": step.who, "when": when, "more": more})
        return rows

    def _row(self, cell: CellKey) -> dict[str, Any]:
        photo = PhotoId(cell.folder, cell.image)
        id = self.photos.show(photo)  # also of an earlier review of other photos
        link = f"/photo?{urlencode({'class': cell.class_, 'photo': id})}"
        return {"photo": id, "image": cell.image, "name": self.name_of(cell.class_), "link": link}

    def progress(self, who: str) -> dict[str, Any]:
        """Return counts for the page: answers of this person and of all, seconds per answer, open questions."""
        mine, seconds = self.store.totals(who)
        every, _ = self.store.totals()
        scoring = self.scoring.progress
        return {
            "mine": mine,
            "all": every,
            "seconds": round(seconds, 2),
            "questions": len(self.queue),
            "labels": len(self.doubts),
            "disputed": self.store.disputes,
            "doing": scoring.doing,
            "done": scoring.done,
            "total": scoring.total,
            "error": scoring.error,
            "ready": scoring.finished,
            "model": self.model_run.name,
            "forecast": self._forecast(),
        }

    def _forecast(self) -> dict[str, Any] | None:
        """Return what more answers are expected to buy; None if nothing is known about these photos."""
        if not self._cells:
            return None
        _, seconds = self.store.totals()
        found = forecast(
            self._measured,
            cells=self._cells,
            trained=self._trained,
            answered=self._trained + self.queue.answered,
            seconds=seconds or None,
        )
        stop = found.hour is not None and 100 * found.hour < self.stop_below
        return {**asdict(found), "stop": stop, "stop_below": self.stop_below, "next": NEXT}


def _word(state: int | None) -> str | None:
    return None if state is None else "positive" if state == Label.POSITIVE else "negative"


def _token(path: Path) -> str:
    """Return the secret of the page; a restarted server keeps it, so that open pages go on."""
    if path.exists() and (known := path.read_text("utf-8").strip()):
        return known
    token = secrets.token_urlsafe(24)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(token)
    return token


@contextmanager
def opened(
    run: Path,
    table: LabelTable | None = None,
    *,
    order: str | None = None,
    cpu: bool = False,
    stop_below: float = STOP_BELOW,
) -> Iterator[Review]:
    """Open a review of a run, and close it at the end; one process at a time.

    Args:
        run: a finished run.
        table: photos to review, and what is known about them; None for the training photos of the run.
        order: a key of `orders.ORDERS`; None for the default.
        cpu: do not use a GPU.
        stop_below: points of mAP; if an hour of answers is expected to buy less, the page advises to stop.

    Raises:
        CheckpointError: the run has no model, or another process reviews it.
        DataError: the photos are not where the run found them.
    """
    read_info(model_path(run))
    check_order(order or DEFAULT_ORDER, LIMIT, None)
    if own := table is None:
        table = run_table(run)
        root = table.require_root("the training labels", "pass the labels to review: review RUN DATA")
        if not root.is_dir():
            raise DataError(
                f"the photos of {run} were in {root}, which does not exist. Pass the labels and photos to review: "
                f"`fewtags review {run} LABELS --images FOLDER`."
            )
    table = replace(table, root=table.require_root().absolute())
    (run / WORK_FOLDER).mkdir(exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(run / WORK_FOLDER))
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} Several people can answer at once: open the address that it printed."
            ) from error
        review = Review(run, table, order=order, cpu=cpu, stop_below=stop_below, own=own)
        stack.callback(review.close)
        yield review
