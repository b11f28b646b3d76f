"""One folder with stand-ins of all data sets, for all tests of protocols."""

import gc

import bench_sets
import pytest


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """All stand-ins in one folder. What exists is not searched again by the collections that training asks for."""
    folder = tmp_path_factory.mktemp("sets")
    for write in (bench_sets.coco, bench_sets.hill, bench_sets.voc, bench_sets.nus, bench_sets.cub):
        write(folder)
    bench_sets.imagenet(folder)
    bench_sets.objects365(folder)
    gc.freeze()
    yield folder
    gc.unfreeze()
