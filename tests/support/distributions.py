"""The requirements of installed distributions."""

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required(name, extras=("",)):
    """Return the distributions that a distribution needs with these extras, including itself."""
    found = {canonicalize_name(name)}
    for text in metadata.requires(name) or ():
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            found |= required(need.name, tuple(need.extras) or ("",))
    return found
