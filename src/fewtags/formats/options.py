"""The options of all readers, declared once: for `read` in Python, and for the section `data` of `fewtags train`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from fewtags.errors import ConfigError
from fewtags.files import with_home
from fewtags.text import suggest

Points = Literal["pixels", "fractions"]


def fold(word: str) -> str:
    """Return the form in which words are compared: stripped and in lower case."""
    return word.strip().casefold()


# Names that mean "none of the classes" wherever they stand alone, and names that may be a class as well.
_NONE = (
    *("none", "no finding", "no findings", "none of the above", "none of these", "none of the classes"),
    *("no object", "no objects", "__background__"),
)
_MAYBE_NONE = frozenset(
    [
        *("empty", "background", "backgrounds", "blank", "nothing", "negative", "negatives", "normal", "healthy"),
        *("noanimal", "noanimals", "nolabel", "void", "null", "nil", "nothere", "absent", "allnegative"),
    ]
)


_UNLABELLED = frozenset(
    [
        *("unlabelled", "unlabeled", "unsorted", "unknown", "unclassified", "unannotated", "todo", "tolabel"),
        *("tobelabelled", "tobelabeled", "notlabelled", "notlabeled", "unbekannt", "inconnu"),
    ]
)


def _joined(name: str) -> str:
    """Return a name without case, and without separators inside: "No_Finding" is "nofinding"."""
    return re.sub(r"(?<=[^\W_])[\s_-]+(?=[^\W_])", "", fold(name))


def _split_words(given: Any) -> Any:
    """Split text at commas, as on a command line: "a, b" is ("a", "b")."""
    return tuple(word.strip() for word in given.split(",") if word.strip()) if isinstance(given, str) else given


Words = Annotated[tuple[str, ...], BeforeValidator(_split_words)]


PathText = Annotated[str, AfterValidator(with_home)]
"""A setting that is a path, or may be one."""
FolderText = Annotated[str, Field(min_length=1), AfterValidator(with_home)]
"""A setting that is a path and not empty."""


class ReadOptions(BaseModel):
    """How annotations are read. A reader uses the options that concern its format; None means "derive from the file".

    The settings of a training run inherit these fields, so that each option has one name, default and description.

    Raises:
        ConfigError: a value that is not allowed, or one word with two meanings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    complete: bool = Field(False, description="classes that are not named in an image are known to be absent")
    uncertain: Literal["ignore", "ones", "zeros"] = Field(
        "ignore", description='meaning of -1 or "u" in a class column: unknown, positive or negative'
    )
    blank: Literal["unknown", "negative"] = Field("unknown", description="meaning of an empty cell")
    difficult: Literal["unknown", "positive", "negative"] = Field(
        "unknown", description="meaning of VOC objects that are marked difficult"
    )
    none_folder: Words | None = Field(
        None,
        description='folders, tags or classes that mean "none of the classes"; empty for no such name; default: none '
        "and no finding, and others such as empty and background are asked about",
    )
    absent_prefix: str = Field(
        "-",
        description="beginning of a folder, tag or class that states the absence of the class after it, as in -cat; "
        "empty for none",
    )
    crowd: Literal["positive", "unknown"] = Field(
        "positive", description="meaning of COCO crowds and OpenImages groups"
    )
    places: Literal["boxes", "points", "outlines", "none"] = Field(
        "boxes",
        description="what is read of objects: boxes; a random point in each outline, or else in the box (points); a "
        "random point in each outline, or else the box (outlines); or labels only (none)",
    )
    point_seed: int = Field(0, ge=0, le=2**32 - 1, description="seed of the random points in outlines")
    image_column: str | None = Field(
        None, description="CSV column or Label Studio key with the image names; default: found by name and content"
    )
    columns: Words | None = Field(
        None, description="CSV columns that are classes, or the one with tags; Label Studio controls to read"
    )
    points: Points | None = Field(None, description="unit of the CSV columns x and y")
    delimiter: str | None = Field(None, description="character between the cells of a CSV; tab for a tabulator")
    tags_separator: str | None = Field(None, description="character between the tags in a cell; space for a blank")
    positive_words: Words = Field((), description="more words for positive in class columns")
    negative_words: Words = Field((), description="more words for negative")
    unknown_words: Words = Field((), description="more words for unknown")
    rename: Words = Field(
        (),
        description="OLD=NEW for each class to rename, in all label files; a class that gets the name of another "
        "one is joined with it",
    )

    names: PathText | None = Field(
        None, description="CSV or JSON file with ids of classes and the names to show, such as n02012849,crane"
    )

    @property
    def draws_points(self) -> bool:
        """Whether random points in outlines replace boxes."""
        return self.places in ("points", "outlines")

    def is_none(self, name: str) -> bool:
        """Return whether a folder, tag or class means "none of the classes"."""
        words = _NONE if self.none_folder is None else self.none_folder
        return bool(words) and _joined(name) in {_joined(word) for word in words}

    def may_be_none(self, name: str) -> bool:
        """Return whether a folder, tag or class may mean "none of the classes", and the user has not said which do."""
        return self.none_folder is None and _joined(name) in _MAYBE_NONE

    def may_be_unlabelled(self, name: str) -> bool:
        """Return whether a folder, tag or class may mean that nobody has labelled the photo."""
        return self.none_folder is None and _joined(name) in _UNLABELLED

    def absent(self, name: str) -> str:
        """Return the class that a folder, tag or class states to be absent, such as "cat" for "-cat"; else ""."""
        rest = name.removeprefix(self.absent_prefix).strip() if self.absent_prefix else ""
        return rest if rest and name.startswith(self.absent_prefix) and rest[0].isalpha() else ""

    def meaning(self, name: str) -> str:
        """Return how a folder or tag is read: "positive", "none of the classes" or "cat is absent"."""
        if self.is_none(name):
            return "none of the classes"
        return f"{absent} is absent" if (absent := self.absent(name)) else "positive"

    def without_effect(self, used: Iterable[str]) -> list[str]:
        """Return the options that differ from their default but are not among those that a reader uses."""
        fields = ReadOptions.model_fields
        return [name for name in fields if getattr(self, name) != fields[name].default and name not in set(used)]

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        meanings = Counter[str]()
        for words in (self.positive_words, self.negative_words, self.unknown_words):
            meanings.update({fold(word) for word in words})
        if twice := [word for word, count in meanings.items() if count > 1]:
            raise ValueError(f"the word {twice[0]!r} has two meanings; leave it in one of the *_words options only.")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _raise_config_error(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report options that were passed in Python; settings of a run are reported by `config.parse`."""
        if cls is not ReadOptions:
            return handler(given)
        for name in ("columns", "positive_words", "negative_words", "unknown_words", "rename"):
            if isinstance(given, dict) and isinstance(value := given.get(name), str):
                raise ConfigError(f"{name} takes several names; write ({value!r},).")
        try:
            return handler(given)
        except ValidationError as error:
            raise ConfigError(_describe(error)) from None


def _describe(error: ValidationError) -> str:
    """Return the first problem in one line."""
    first = error.errors()[0]
    if not first["loc"]:
        return first["msg"].removeprefix("Value error, ")
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "literal_error":
        annotation = ReadOptions.model_fields[name].annotation
        # Of an optional Literal, the Literal comes first.
        allowed = [
            text for part in get_args(annotation) for text in ([part] if isinstance(part, str) else get_args(part))
        ]
        return f"{name} = {value!r}{suggest(str(value), allowed)}: expected one of {', '.join(allowed)}."
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not an option{suggest(name, ReadOptions.model_fields)}."
    return f"{name} = {value!r}: {first['msg']}."
