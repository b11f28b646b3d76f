"""The tables of methods: settings are the signature of the class, there and back."""

import dataclasses
import inspect
import json
import sys
from typing import get_type_hints

import pytest

from fewtags.config.parse import parse
from fewtags.engine.methods import (
    EVERY_METHOD,
    METHODS,
    PRETRAIN_METHODS,
    changed_source,
    make_objective,
    method_class,
    method_doc,
    method_source,
    model_of,
    pretrain_settings_models,
    settings_model,
    settings_models,
    settings_of,
)
from fewtags.errors import ConfigError
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Objective
from fewtags.objectives.byol import BYOL
from fewtags.objectives.declared import declared
from fewtags.objectives.densecl import DenseCL
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.mls import MLS
from fewtags.objectives.moco import MoCo
from fewtags.objectives.nnclr import NNCLR
from fewtags.objectives.patchml import PatchML
from fewtags.objectives.simsiam import SimSiam

EXAMPLES = [
    BCE(),
    AssumeNegative(),
    AssumeNegative(smoothing=0.1),
    AssumeNegative(negative_weight="weak"),
    AssumeNegative(negative_weight=0.25),
    ExpectedNegative(positives_per_image=2.9, scl_weight=1.0, heatmap_top_k=3, heatmap_storage="disk", ramp_epochs=2),
    ExpectedNegative(class_prior=(0.1, 0.2), warmup_loss="expected_negative", corrected_averages=True, distance="jsd"),
    PatchML(image_gammas=(0.0, 1.0, 4.0), patch_unknown="selective", pseudo_weight=0.5, near=0.2),
    FixMatch(positive_from=(0.9, 0.8), negative_to=0.1, uncertainty_views=4, pseudo_fill="unknown"),
    MoCo(queue_size=4096, batchnorm_groups=8),
    MLS(k=5, neighbour_loss="knn_eq10", source="features", include_self=True, hidden_dim=64),
    SimSiam(projection_dim=64, predictor_dim=16),
    BYOL(momentum=0.99, momentum_schedule="constant"),
    NNCLR(temperature=0.2, queue_size=512),
    DenseCL(weight=0.3),
]


@pytest.mark.parametrize("objective", EXAMPLES, ids=lambda o: type(o).__name__)
def test_an_objective_comes_back_from_its_settings(objective):
    again = make_objective(settings_of(objective))
    assert type(again) is type(objective)
    for field in dataclasses.fields(objective):
        assert getattr(again, field.name) == getattr(objective, field.name), field.name


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_settings_are_the_signature_of_the_class(name):
    """Nothing is said twice: the same names, in the same order, with the same defaults."""
    models = settings_models() if name in METHODS else pretrain_settings_models()
    fields = models[name].model_fields
    expected = {p: value.default for p, value in inspect.signature(method_class(name)).parameters.items()}
    assert [*fields] == ["name", *expected]
    assert {key: fields[key].default for key in expected} == expected
    assert not any(default is inspect.Parameter.empty for default in expected.values())


def test_what_was_left_to_derive_is_filled_in_and_nothing_else():
    models = settings_models()
    settings = models["expected_negative"](name="expected_negative", cl_weight=0.5)
    assert make_objective(settings, positives_per_image=1.7, cl_weight=9.0).positives_per_image == 1.7
    assert make_objective(settings, positives_per_image=1.7, cl_weight=9.0).cl_weight == 0.5
    said = models["expected_negative"](name="expected_negative", positives_per_image=2.0)
    assert make_objective(said, positives_per_image=1.7).positives_per_image == 2.0
    assert make_objective(models["bce"](name="bce"), positives_per_image=1.7) == BCE()


def test_the_methods_own_checks_hold():
    tree = {"data": {"train": "x"}, "objective": {"name": "expected_negative", "momentum": 2.0}}
    with pytest.raises(ConfigError, match=r"objective\.momentum = 2\.0: must be in 0\.\.1"):
        parse(tree, settings_models())
    tree = {"data": {"train": "x"}, "objective": {"name": "gr", "width": [0, 1.0]}}
    with pytest.raises(ConfigError, match=r"objective\.width = \[0, 1\.0\]: numbers must be above 0"):
        parse(tree, settings_models())


def test_a_setting_that_cannot_be_written_down():
    with pytest.raises(ConfigError) as error:
        settings_of(ExpectedNegative(scl_weight=float("inf")))
    assert str(error.value) == ("1 problem in ExpectedNegative:\n  scl_weight = inf: input should be a finite number")


def test_a_class_that_cannot_be_imported_again_is_refused():
    @dataclasses.dataclass(eq=False)
    class Mine(Objective):
        def step(self, net, batch, at):
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"cannot be imported from .*; define the class at the top level of a module"):
        settings_of(Mine())


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_the_table_names_classes_that_exist_and_says_what_they_do(name):
    assert issubclass(method_class(name), Objective)
    assert EVERY_METHOD[name].path == f"{method_class(name).__module__}:{method_class(name).__qualname__}"
    assert EVERY_METHOD[name].summary


def test_names():
    assert method_class("bce") is BCE
    assert method_class("moco") is MoCo
    assert not METHODS.keys() & PRETRAIN_METHODS.keys()
    with pytest.raises(ConfigError) as error:
        method_class("bec")
    assert str(error.value) == (
        f"'bec' is not a method (did you mean 'bce'?). Known: {', '.join(EVERY_METHOD)}, or a class of your own as "
        "my_package.my_module:MyObjective."
    )


def test_every_setting_of_a_method_is_in_its_documentation():
    for name in EVERY_METHOD:
        method = method_class(name)
        for field in dataclasses.fields(method):
            assert f"    {field.name}: " in method_doc(name), (name, field.name)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_settings_that_are_read_from_the_source_are_those_of_the_class(name):
    method = method_class(name)
    found = declared(EVERY_METHOD[name].path)
    hints = get_type_hints(method, include_extras=True)
    fields = {
        field.name: (hints[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(method)
        if field.init
    }
    assert list(found.fields.items()) == list(fields.items())
    assert found.doc.startswith(inspect.getdoc(method))
    bases = [base for base in method.__mro__[1:] if "__dataclass_fields__" in vars(base)]
    assert all(f"{base.__name__}: {inspect.getdoc(base)}" in found.doc for base in bases)
    assert settings_model(name).model_json_schema() == model_of(method).model_json_schema()


# --- methods of your own

HEADER = """
from dataclasses import dataclass
import fewtags as ft
"""
TYPES = "from collections.abc import Callable\nfrom pathlib import Path\n"
SOUND = """
@dataclass(eq=False)
class Mine(ft.Objective):
    rate: float = 0.5
    kind: str = "a"

    def step(self, net, batch, at):
        raise NotImplementedError
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current folder; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = []

    def write(text, name=f"own_{tmp_path.name}"):
        (tmp_path / f"{name}.py").write_text(HEADER + text, "utf-8")
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_a_method_of_your_own_comes_from_the_current_folder(module):
    name = module(SOUND)
    settings = settings_models()[f"{name}:Mine"](name=f"{name}:Mine", rate=0.25)
    objective = make_objective(settings)
    assert (objective.rate, objective.kind) == (0.25, "a")
    assert settings_of(objective) == settings
    assert method_source(objective)["file"].endswith(f"{name}.py")
    assert method_source(BCE()) is None


def test_a_change_of_its_file_is_noticed(module, tmp_path):
    name = module(SOUND)
    objective = method_class(f"{name}:Mine")()
    began = {"method_source": method_source(objective)}
    assert changed_source(objective, began) is None
    module(SOUND + "# changed")
    assert changed_source(objective, began).endswith(
        f"{name}.py has changed since the run began, so the result may differ"
    )
    assert changed_source(BCE(), {"method_source": None}) is None


def test_settings_of_a_method_of_your_own_are_validated(module):
    name = module(SOUND)
    with pytest.raises(ConfigError) as error:
        parse({"data": {"train": "x"}, "objective": {"name": f"{name}:Mine", "rat": 1, "kind": 2}}, settings_models())
    assert "unknown key 'objective.rat'; did you mean 'objective.rate'?" in str(error.value)
    assert "objective.kind = 2: input should be a valid string" in str(error.value)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (SOUND, "{name}:Mein", "has no class 'Mein' (did you mean 'Mine'?)."),
        (SOUND, "{name}:Mine()", "'{name}:Mine()' does not name a class; write it as my_package.my_module:My"),
        ("Mine = 3", "{name}:Mine", "{name}:Mine is not a subclass of fewtags.Objective."),
        ("class Mine(ft.Objective):\n    pass", "{name}:Mine", "{name}:Mine does not define step."),
        (SOUND.replace("@dataclass(eq=False)", ""), "{name}:Mine", "{name}:Mine is not a dataclass; its settings"),
        (SOUND.replace("rate:", "name:"), "{name}:Mine", "{name}:Mine has a setting called name"),
        ("import no_such_module", "{name}:Mine", "{name}.py, line 4: ModuleNotFoundError: No module named 'no_such_m"),
        ("x = 1 / 0", "{name}:Mine", "{name}.py, line 4: ZeroDivisionError: division by zero"),
        ("def f(:", "{name}:Mine", "{name}.py, line 4: SyntaxError: invalid syntax"),
        (SOUND.replace("rate:", "_rate:"), "{name}:Mine", "{name}:Mine has a setting called _rate, which cannot be a"),
        (SOUND.replace("rate:", "model_config:"), "{name}:Mine", "has a setting called model_config, which cannot be"),
        (TYPES + SOUND.replace("float = 0.5", "Path = Path()"), "{name}:Mine", "rate of {name}:Mine has the type Path"),
        (SOUND.replace("float = 0.5", "set[int] | None = None"), "{name}:Mine", "{name}:Mine has the type set, which"),
        (SOUND.replace("float", "tuple[bytes, ...]"), "{name}:Mine", "rate of {name}:Mine has the type bytes, which"),
        (TYPES + SOUND.replace("float = 0.5", "Callable = abs"), "{name}:Mine", "Mine has the type Callable, which"),
        (SOUND, "{name}.py:Mine", "'{name}.py:Mine' names a file; write the module without .py: {name}:Mine."),
        (SOUND.replace("rate: float", "rate: 'Unknown'"), "{name}:Mine", "{name}:Mine cannot be written into a config"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_its_reason(module, text, path, message):
    name = module(text)
    with pytest.raises(ConfigError) as error:
        settings_models()[path.format(name=name)]
    assert message.format(name=name) in str(error.value)


def test_types_of_settings_that_can_be_written_down(module):
    kinds = "int | None", "tuple[float, ...]", 'Literal["a", 1]', "Annotated[float, 1]", 'NewType("N", int)', "Any"
    fields = "".join(f"    s{i}: {kind} = None\n" for i, kind in enumerate((*kinds, "list[str]", "dict[str, bool]")))
    name = module("from typing import *\n" + SOUND.replace("    rate: float = 0.5\n", fields))
    assert len(settings_models()[f"{name}:Mine"].model_fields) == 1 + 8 + 1


def test_a_module_that_cannot_be_found_says_where_it_was_looked_for(module, tmp_path):
    with pytest.raises(ConfigError) as error:
        method_class("no_such_package.losses:Mine", tmp_path / "runs")
    assert str(error.value) == (
        "cannot find the module 'no_such_package' of the method no_such_package.losses:Mine: there is no "
        f"no_such_package.py or no_such_package/ in {tmp_path} or {tmp_path / 'runs'}, and no installed package has "
        "this name. Run the command in the folder that contains it, install the package, or add its folder to "
        "PYTHONPATH."
    )


def test_a_run_is_resumed_with_modules_of_the_folder_it_was_started_in(module, tmp_path, monkeypatch):
    name = module(SOUND)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"working_directory": str(tmp_path)}), "utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot find the module"):
        settings_models()[f"{name}:Mine"]
    assert f"{name}:Mine" in settings_models(tmp_path / "run")
    assert settings_models(tmp_path / "run")[f"{name}:Mine"].model_fields["rate"].default == 0.5
