"""How functions are declared: decorators, types, and how a process gets the functions that it runs."""
