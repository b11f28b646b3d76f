"""`fewtags transfer`: what an encoder is worth on other tasks. Torch is imported inside commands only."""

from __future__ import annotations

from typing import Annotated

import typer

from fewtags.cli.transfer_options import (
    AnySize,
    Asked,
    AsSet,
    Backbone,
    Complete,
    Cpu,
    DataArg,
    Decays,
    EncoderArg,
    Images,
    Json,
    KindOption,
    Lrs,
    MinArea,
    PerClass,
    PolicyOption,
    Runs,
    Seed,
    SetReading,
    Share,
    Size,
    TestLabels,
    ValLabels,
    WorkersOption,
    precision_of,
    prepare,
    quietly,
    refuse_processes,
    schedule_of,
    settings_of,
    showing,
    tell,
    ticking,
)

transfer_app = typer.Typer(
    help="What a (pretrained) encoder is worth on other tasks: probes on frozen features, fine-tuning, detection, "
    "segmentation, nearest photos.",
    no_args_is_help=True,
    add_completion=False,
)


@transfer_app.command()
def knn(
    encoder: EncoderArg,
    data: DataArg,
    as_set: AsSet = None,
    test: TestLabels = None,
    val: ValLabels = None,
    images: Images = None,
    kind: KindOption = None,
    complete: Complete = False,
    any_size: AnySize = False,
    k: Annotated[int, typer.Option("--neighbours", "-k", min=1, help="Nearest training photos that vote.")] = 20,
    temperature: Annotated[float, typer.Option(help="A neighbour of cosine s votes with exp(s / this).")] = 0.07,
    backbone: Backbone = None,
    size: Size = None,
    policy: PolicyOption = None,
    share: Share = None,
    per_class: PerClass = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    set_: SetReading = None,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Nearest neighbours on frozen features: nothing is trained.

    \b
    Examples:
      fewtags transfer knn runs/pretrained data/flowers-102 --as flowers
      fewtags transfer knn offline tags.csv --backbone tf_efficientnet_lite0 --images photos/
      fewtags transfer knn runs/pretrained train/ --test test/ --per-class 10 --runs 5
    """  # noqa: D301
    from fewtags.transfer.protocols import knn_protocol
    from fewtags.transfer.trials import run_knn

    asked = Asked(
        "knn", encoder, data, as_set, test, val, images, kind, complete, any_size, backbone, size, policy, share,
        per_class, runs, seed, workers, cpu, as_json, set_,
    )  # fmt: skip
    refuse_processes("knn")
    info, trials = prepare(asked)
    with ticking(trials) as trials:
        found = run_knn(trials, k=k, temperature=temperature)
    settings = {"k": k, "temperature": temperature}
    tell(asked, info, trials, found, settings, knn_protocol(trials.task, k, temperature))


@transfer_app.command()
def svm(
    encoder: EncoderArg,
    data: DataArg,
    as_set: AsSet = None,
    test: TestLabels = None,
    val: ValLabels = None,
    images: Images = None,
    kind: KindOption = None,
    complete: Complete = False,
    any_size: AnySize = False,
    costs: Annotated[
        list[float] | None,
        typer.Option("--cost", help="C of the SVM, default 0.5; may be repeated: each class chooses over three folds."),
    ] = None,
    backbone: Backbone = None,
    size: Size = None,
    policy: PolicyOption = None,
    share: Share = None,
    per_class: PerClass = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    set_: SetReading = None,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """A linear SVM per class on frozen features (the VOC07 SVM protocol). Needs scikit-learn: fewtags[transfer].

    \b
    Examples:
      fewtags transfer svm runs/pretrained VOCdevkit --as voc2007
      fewtags transfer svm runs/pretrained VOCdevkit --as voc2007 --per-class 16 --runs 5
      fewtags transfer svm runs/pretrained tags.csv --images photos/ --cost 0.05 --cost 0.5 --cost 5
    """  # noqa: D301
    from fewtags.transfer.probes import SVM_COST
    from fewtags.transfer.protocols import svm_protocol
    from fewtags.transfer.trials import run_svm

    asked = Asked(
        "svm", encoder, data, as_set, test, val, images, kind, complete, any_size, backbone, size, policy, share,
        per_class, runs, seed, workers, cpu, as_json, set_,
    )  # fmt: skip
    refuse_processes("svm")
    tried = costs or [SVM_COST]
    info, trials = prepare(asked)
    with ticking(trials) as trials:
        found = run_svm(trials, costs=tried)
    protocol = svm_protocol(trials.task, tried, info, trials.place.policy, trials.few)
    tell(asked, info, trials, found, {"costs": tried}, protocol)


@transfer_app.command()
def linear(
    encoder: EncoderArg,
    data: DataArg,
    as_set: AsSet = None,
    test: TestLabels = None,
    val: ValLabels = None,
    images: Images = None,
    kind: KindOption = None,
    complete: Complete = False,
    any_size: AnySize = False,
    epochs: Annotated[int, typer.Option(min=1, help="How many times every photo is seen.")] = 100,
    lrs: Lrs = None,
    decays: Decays = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos a step.")] = 256,
    schedule: Annotated[
        str, typer.Option(help="steps (a tenth after 60 % and 80 % of the epochs), cosine or constant.")
    ] = "steps",
    views: Annotated[int, typer.Option(min=1, help="Random crops per photo, pushed through the encoder once.")] = 8,
    min_area: MinArea = None,
    backbone: Backbone = None,
    size: Size = None,
    policy: PolicyOption = None,
    share: Share = None,
    per_class: PerClass = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    set_: SetReading = None,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """A linear layer on frozen features of random crops.

    The defaults are MoCo's: SGD, learning rate 30, 100 epochs. Its crops are new in every epoch; here there are as many
    as --views (with --views 100 the same). Features are not scaled, so that the right learning rate depends on the
    encoder: repeat --lr to have it chosen on validation.

    \b
    Examples:
      fewtags transfer linear runs/pretrained data/dtd --as dtd --lr 0.3 --lr 3 --lr 30
      fewtags transfer linear runs/pretrained tags.csv --images photos/ --epochs 30 --lr 3 --runs 3
    """  # noqa: D301
    from fewtags.transfer.protocols import linear_protocol
    from fewtags.transfer.training import TrainSettings, grid
    from fewtags.transfer.trials import run_linear

    asked = Asked(
        "linear", encoder, data, as_set, test, val, images, kind, complete, any_size, backbone, size, policy, share,
        per_class, runs, seed, workers, cpu, as_json, set_, min_area,
    )  # fmt: skip
    refuse_processes("linear")
    rates, weights = lrs or [30.0], decays or [0.0]
    base = TrainSettings(epochs, rates[0], weights[0], batch_size, schedule_of(schedule), workers=workers)
    candidates = grid(base, rates, weights)
    info, trials = prepare(asked)
    with ticking(trials) as trials:
        found = run_linear(trials, candidates, views=views, follow=quietly)
    protocol = linear_protocol(trials.task, candidates, views, trials.few)
    tell(asked, info, trials, found, {**settings_of(candidates), "views": views}, protocol)


@transfer_app.command()
def finetune(
    encoder: EncoderArg,
    data: DataArg,
    as_set: AsSet = None,
    test: TestLabels = None,
    val: ValLabels = None,
    images: Images = None,
    kind: KindOption = None,
    complete: Complete = False,
    any_size: AnySize = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: 120; multi-label 30.")] = None,
    lrs: Lrs = None,
    decays: Decays = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Photos a step and process; default: 64; multi-label 16.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="cosine (to 0), steps (a tenth after 60 % and 80 % of the epochs) or constant.")
    ] = "cosine",
    batchnorm_eval: Annotated[bool, typer.Option("--batchnorm-eval", help="Hold BatchNorm statistics fixed.")] = False,
    precision: Annotated[str, typer.Option(help="no (float32), bf16 or fp16.")] = "no",
    min_area: MinArea = None,
    backbone: Backbone = None,
    size: Size = None,
    policy: PolicyOption = None,
    share: Share = None,
    per_class: PerClass = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    set_: SetReading = None,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Train the whole network with a fresh linear head.

    SGD, learning rate 0.01, weight decay 1e-4. Single classes: 120 epochs, batch 64, as MLS trains its seven sets as
    far as the paper says. Multi-label: 30 epochs, batch 16, whole photos; VOC2007 at 448 pixels. The weights of the
    last epoch are measured; nothing is written.

    \b
    Examples:
      fewtags transfer finetune runs/pretrained data/CUB_200_2011 --as cub200 --runs 3
      fewtags transfer finetune runs/pretrained VOCdevkit --as voc2007
      fewtags transfer finetune none data/dtd --as dtd --backbone resnet50 --lr 0.1 --lr 0.01
    """  # noqa: D301
    from fewtags.transfer.protocols import finetune_protocol
    from fewtags.transfer.training import TrainSettings, grid
    from fewtags.transfer.trials import run_finetune

    asked = Asked(
        "finetune", encoder, data, as_set, test, val, images, kind, complete, any_size, backbone, size, policy, share,
        per_class, runs, seed, workers, cpu, as_json, set_, min_area, precision_of(precision),
    )  # fmt: skip
    info, trials = prepare(asked)
    single = trials.task.kind == "single"
    rates, weights = lrs or [0.01], decays or [1e-4]
    base = TrainSettings(
        epochs or (120 if single else 30), rates[0], weights[0], batch_size or (64 if single else 16),
        schedule_of(schedule), batchnorm_eval, precision, workers=workers,
    )  # fmt: skip
    candidates = grid(base, rates, weights)
    found = run_finetune(trials, candidates, follow=showing)
    protocol = finetune_protocol(trials.task, base, info, trials.few)
    tell(asked, info, trials, found, settings_of(candidates), protocol)
