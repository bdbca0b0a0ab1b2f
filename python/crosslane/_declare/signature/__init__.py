"""SQL signatures of declared functions: types from annotations, and one module for each kind of
function.
"""
