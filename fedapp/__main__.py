"""`python -m fedapp` is the `fedapp` command."""

from fedapp.cli.app import main

if __name__ == "__main__":
    main()
