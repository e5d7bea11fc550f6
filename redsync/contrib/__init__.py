"""Modules for frameworks: each needs one import and two lines of configuration.

1. A module imports its framework, and nothing else in redsync imports the module. If the framework is missing, the
   `ImportError` names the extra to install.
2. A module uses the public API only: an application could do the same.
3. Bad configuration raises an error as early as the framework allows; the error names the setting.
"""
