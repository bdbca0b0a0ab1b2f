"""Functions of a server, beside local lanes and other servers."""
