"""Types of configuration values with their limits, and the declaration of one key."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import ErrorDetails

Auto = Literal["auto"]
MOST = 1e30  # of any factor; float32 ends at 3.4e38, and an Adam step can be ten times the rate
Positive = Annotated[float, Field(gt=0, le=MOST)]
Count = Annotated[int, Field(ge=1)]
Clusters = Annotated[int, Field(ge=2, le=1000)]
MOST_FEATURES = 65_536  # of a layer; more fill the memory
Features = Annotated[int, Field(ge=1, le=MOST_FEATURES)]
FeaturesOrNone = Annotated[int, Field(ge=0, le=MOST_FEATURES)]  # 0: none
Unsigned = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=0, le=1024)]
Weight = Annotated[float, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]


def must_be(error: ErrorDetails) -> str:
    """Return what a refused value must be, for a sentence: "greater than 0"."""
    if (limit := error.get("ctx", {}).get("le")) is not None:
        return f"less than or equal to {limit:g}"  # pydantic prints all digits of 1e30
    must = error["msg"].removeprefix("Input should be ")
    return must.replace("a valid integer", "an integer", 1).replace("a valid ", "a ", 1)


@dataclass(frozen=True)
class Key:
    """A run-config key of a method: its type, its default and its help text."""

    kind: Any  # a type of this module or any other that pydantic checks
    default: Any
    meaning: str
