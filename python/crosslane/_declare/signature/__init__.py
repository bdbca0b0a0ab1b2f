"""Signatures of declared functions: types from annotations, and a module for each kind."""
