"""The method table as text, for `fedapp methods` and docs/methods.md."""

from fedapp.config_input import kebab
from fedapp.method import ADD, PERTURB, Method
from fedapp.methods import METHODS
from fedapp.results import formatting


def table() -> list[dict[str, str]]:
    """Return the method table as text, one dictionary per row."""
    return [
        {
            "method": name,
            "title": row.title,
            "head": row.head if row.personal is None else row.personal.style,
            "loss": row.loss,
            "regulariser": row.regulariser or "-",
            "combined": _combination(row),
            "strategy": row.strategy.__name__,
            "client": row.client.__name__,
            "sends": f"{row.sends}, {row.also_sends}" if row.also_sends else row.sends,
            "keeps": _kept(row),
            "defaults": " ".join(f"{kebab(key)}={value:g}" for key, value in row.defaults.items())
            or "-",
            "source": row.source,
        }
        for name, row in METHODS.items()
    ]


def markdown_table() -> str:
    """Return the method table for docs/methods.md."""
    rows = table()
    lines = [[f"`{row['method']}`", *list(row.values())[1:]] for row in rows]
    return "\n".join(formatting.markdown_table(list(rows[0]), lines))


def _kept(row: Method) -> str:
    key, value = row.keeps_with
    kept = row.kept(row.regulariser, {key: value}) or "-"
    return f"{kept} ({key}={value})" if key else kept


def _combination(row: Method) -> str:
    if row.regulariser is None:
        return row.loss
    if row.combine == ADD:
        return f"{row.loss} + {row.weight} {row.regulariser}"
    if row.combine == PERTURB:
        return f"{row.loss} at weights moved along {row.regulariser}"
    return f"beta {row.loss} + (1 - beta) {row.regulariser}"
