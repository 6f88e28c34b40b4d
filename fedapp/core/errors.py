"""The one exception for mistakes a user can mend.

Everything that is wrong with an input (a config key, a data folder, a checkpoint) is raised as a
`UserError` whose text is one sentence: what is wrong, where, and what would be right. The command
line and the ServerApp print that sentence alone, without a traceback.
"""


class UserError(Exception):
    """A mistake in the configuration, the data or the environment, explained in one sentence."""

    def __init__(self, sentence: str) -> None:
        """Take the sentence; bytes of a file's name that are no UTF-8 are written as \\udcNN.

        So it can be printed, and sent in a message.
        """
        super().__init__(sentence.encode("utf-8", "backslashreplace").decode())


def out_of_memory(error: Exception) -> str:
    """Return one sentence for PyTorch's error of a GPU whose memory is full."""
    said = ". ".join(str(error).split(". ")[:3])
    return (
        f"a GPU's memory is full ({said}); use fewer workers on it (--workers), a smaller "
        "batch-size or device='cpu'"
    )
