"""One of two processes: features of its share of the photos, and fine-tuning. `two_processes_worker.py RANK FOLDER`."""

from collections import deque
from pathlib import Path

import torch
from two_processes import load, main

from fewtags.engine.distributed import make_accelerator
from fewtags.nets.encoder import create_encoder
from fewtags.photos.augment import WholeImage
from fewtags.transfer.features import photo_features
from fewtags.transfer.task import make_task
from fewtags.transfer.training import ProbeContext, TrainSettings, finetuned_scores

TRAIN, TEST = 19, 9  # not the same number on each process


def work(folder, shard):
    made = load(Path(__file__).with_name("conftest.py"))
    root = folder / f"photos{shard.rank}"
    task = make_task(made.single_table(root, "train", TRAIN), made.single_table(root, "test", TEST))
    context = ProbeContext(make_accelerator(cpu=True), WholeImage(made.SIDE))
    encoder = create_encoder("test_resnet", weights="none", size=made.SIDE)
    features = photo_features(encoder, task.train, context.policy, context.device, shard=context.shard)
    settings = TrainSettings(epochs=12, lr=0.05, weight_decay=0.0, batch_size=5, schedule="cosine")
    scores = finetuned_scores(encoder, task, context, settings, lambda events: deque(events, 0))
    return {"features": torch.from_numpy(features), "scores": torch.from_numpy(scores)}


if __name__ == "__main__":
    main(work)
