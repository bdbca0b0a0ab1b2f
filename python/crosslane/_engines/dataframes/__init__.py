"""Functions of files, called with columns of Python's libraries: :class:`crosslane.Functions`."""
