"""Random views."""

from fewtags.geometry import View


def random_views(rng, number):
    """Crops of at least a quarter of the area, half of them flipped."""
    views = []
    for _ in range(number):
        width, height = rng.uniform(0.5, 1, 2)
        left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
        view = View.crop(left, top, left + width, top + height)
        views.append(view.then(View.flip()) if rng.random() < 0.5 else view)
    return views
