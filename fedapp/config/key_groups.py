"""What the groups of run-config keys are made of: their base class, and the marks of keys."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")
LOCAL, RECORDING, MACHINE = "local", "recording", "machine"
# Marks of keys that may differ between server and nodes, and between a run and its resumption.
Local = Annotated[T, LOCAL]  # where and how long a run trains, how often it evaluates
Machine = Annotated[T, LOCAL, MACHINE]  # local keys that describe the machine only
Recording = Annotated[T, RECORDING]  # how the run is recorded, which changes none of its results


def kebab(name: str) -> str:
    """Return the run-config key of a field: its name in kebab case."""
    return name.replace("_", "-")


def field_name(key: str) -> str:
    """Return the field of a run-config key, the inverse of `kebab`."""
    return key.replace("-", "_")


class Keys(BaseModel):
    """What all groups of keys share: kebab-case aliases, strict types, no change after creation."""

    model_config = ConfigDict(
        alias_generator=kebab,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default of each key; where "auto" is the default, it is not replaced."""
        return {kebab(name): field.default for name, field in cls.model_fields.items()}


def marked_keys(cls: type[BaseModel], *marks: str) -> frozenset[str]:
    """Return the run-config keys that carry one of the marks."""
    fields = cls.model_fields.items()
    return frozenset(
        kebab(name) for name, field in fields if any(mark in field.metadata for mark in marks)
    )
