"""The functions of the package are short."""

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedjax_lab"
LONGEST = 30  # lines of code in a body, including those of inner functions
LONGER = {  # functions that consist mostly of their list of settings, with their lines of code
    "methods/client2vec.py:client2vec": 48,
    "methods/hfedf.py:hfedf": 33,
}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(text):
    """Returns the numbers of the lines with code, without blank lines, comments and docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return lines


def long_functions(text):
    """Returns {name: lines of code of the body} of the functions longer than LONGEST."""
    code = lines_of_code(text)
    bodies = {
        node.name: sum(node.body[0].lineno <= line <= node.end_lineno for line in code)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }
    return {name: length for name, length in bodies.items() if length > LONGEST}


def test_only_lines_of_code_are_counted():
    body = ['    """Says', '    more."""', "", "    # nothing", *["    x = 1"] * 31]
    assert long_functions("\n".join(["def f(", "    a,", "):", *body])) == {"f": 31}
    assert long_functions("\n".join(["def f():", *body[:-1]])) == {}


def test_no_function_is_long():
    too_long = {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}": length
        for path in PACKAGE.rglob("*.py")
        for name, length in long_functions(path.read_text()).items()
    }
    assert too_long == LONGER
