"""What a table says, in forms that tests can write down."""

from fewtags.labels import Label


def labels(table):
    """{key: {class: state}} of what is known."""
    return {
        key: {c: Label(s) for c, s in zip(table.classes.ids, row, strict=True) if s != Label.UNKNOWN}
        for key, row in zip(table.images.to_pylist(), table.matrix.dense(), strict=True)
    }


def facts(table):
    """(image, class, state, corners) of each fact."""
    return [
        (
            table.images[f["image"]].as_py(),
            table.classes.ids[f["class"]],
            f["state"],
            None if f["x0"] is None else tuple(round(f[n], 6) for n in ("x0", "y0", "x1", "y1")),
        )
        for f in table.facts.to_pylist()
    ]


def readings(table):
    """{value: (meaning, count)} of how a file was read."""
    return {r.value: (r.meaning, r.count) for r in table.notes.readings}
