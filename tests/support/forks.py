"""Functions that run in the child of a fork."""

import os
import traceback


def in_child(function):
    """Call a function in the child of a fork; return the text that it returned there, or its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, function().encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        text = told.read().decode()
    os.waitpid(child, 0)
    return text
