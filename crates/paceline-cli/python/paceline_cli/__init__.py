"""Where this package has put the program `paceline`, and how Python runs it."""

import os
import sys
import sysconfig


def program() -> str:
    """The path of the program: in the folder of scripts of this environment or of the user, or beside `pip install --target`.

    Raises FileNotFoundError, with the places that were looked at.
    """
    name = "paceline" + (sysconfig.get_config_var("EXE") or "")
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")),
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"),
    ]
    places = [os.path.join(folder, name) for folder in folders]
    for place in places:
        if os.path.isfile(place):
            return place
    raise FileNotFoundError("the program of paceline-cli is missing; looked for " + ", ".join(places))


def main() -> None:
    """Becomes the program, with the arguments of this process: the same process, so that signals and the exit code are its own."""
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
