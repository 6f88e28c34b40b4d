"""The `fedapp` command, also as `python -m fedapp`.

Until the command handles signals itself, Ctrl-C ends it without a traceback of its imports.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)

from fedapp.cli.app import main  # noqa: E402  (takes a second)

if __name__ == "__main__":
    main()
