"""Write the demo set's handwriting, src/fewtags/assets/digits.npz, from the copy that scikit-learn ships.

    python benchmarks/make_digits_asset.py

The data are the test part (13 writers) of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI
Machine Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0. Changed: stored as 8-bit integers, nothing else.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

ASSET = Path(__file__).parents[1] / "src/fewtags/assets/digits.npz"


def main() -> None:
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    assert np.array_equal(images, digits.images), "ink values are whole numbers 0..16"
    ASSET.parent.mkdir(exist_ok=True)
    np.savez_compressed(ASSET, images=images, labels=labels)
    print(f"{ASSET}: {len(labels)} digits, {ASSET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
