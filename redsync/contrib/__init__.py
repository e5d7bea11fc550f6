"""Modules for frameworks: each is one import and two lines of configuration.

1. A module imports its framework when it is imported, and nothing else in redsync imports that module. A missing
   framework is an `ImportError` that names the extra to install.
2. A module uses the public API only: whatever it does, an application could do itself.
3. Bad configuration is an error when the application starts, with the name of the setting.
"""
