"""How the questions of a model are made."""

from fewtags.review.questions import Question
from fewtags.review.scoring import Found, improved, with_evidence
from fewtags.review.suspicious import Suspicion


def question(image, class_):
    return Question(image=image, class_=class_, name=class_, probability=0.5, rank=1, expected=2.0, reason="")


def suspicion(image, class_):
    return Suspicion(
        image=image,
        class_=class_,
        name=class_,
        state="positive",
        probability=0.1,
        reason="",
        suspicion=1.0,
        self_confidence=0.1,
    )


def test_evidence_looks_at_each_photo_once():
    """Questions about a, b, a and c, and a label of c; two photos at a time: a and c, then b."""
    every = Found(
        [question("a", "x"), question("b", "x"), question("a", "y"), question("c", "y")], [suspicion("c", "x")]
    )
    asked = []

    def find(cells):
        asked.append(cells)
        return [(0.0, 0.0, 0.1 * (1 + n), 1.0) for n in range(len(cells))]

    told = []
    parts = [*with_evidence(every, find, told.append, photos=2)]
    assert asked == [[("a", "x"), ("a", "y"), ("c", "y"), ("c", "x")], [("b", "x")]]
    assert [(one.done, one.total) for one in told] == [(0, 3), (2, 3)]
    found = improved(every, *parts)
    assert [(q.image, q.class_) for q in found.questions] == [("a", "x"), ("b", "x"), ("a", "y"), ("c", "y")]
    assert [round(q.box[2], 1) for q in found.questions] == [0.1, 0.1, 0.2, 0.3]
    assert round(found.suspicious[0].box[2], 1) == 0.4
