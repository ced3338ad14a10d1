"""The tests, as a package: one that is installed may have a package of this name too."""
