"""Small ways to break a module: what can be changed at a node of its tree, and the change."""

import ast
from collections.abc import Callable, Iterator

Break = Callable[[], None]  # changes the tree that it was made from

EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
FLIP = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAP = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
RENAMED = {"float64": "float32", "double": "float", "amax": "amin", "amin": "amax"}
DELETED = ast.Expr | ast.AugAssign | ast.Delete | ast.Continue | ast.Break | ast.Assert
LEAVING = ast.Return | ast.Raise | ast.Continue | ast.Break


def put(node: ast.AST, field: str, value: object) -> Break:
    return lambda: setattr(node, field, value)


def without(items: list, at: int) -> Break:
    return lambda: items.pop(at)


def at_node(node: ast.AST) -> Iterator[tuple[str, Break]]:
    """The names of the changes that a node allows, each with what makes it."""
    match node:
        case ast.Compare(ops=[op]):
            for name, table in (("edge", EDGE), ("comparison", FLIP)):
                if type(op) in table:
                    yield name, put(node, "ops", [table[type(op)]()])
        case ast.Constant(value=bool(value)):
            yield "truth", put(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield "constant + 1", put(node, "value", value + 1)
        case ast.Constant(value=float(value)):
            yield "constant x 10", put(node, "value", value * 10 if value else 1.0)
        case ast.BinOp(op=op) if type(op) in SWAP and not text(node):
            yield "arithmetic", put(node, "op", SWAP[type(op)]())
        case ast.AugAssign(op=op) if type(op) in SWAP and not text(node):
            yield "arithmetic", put(node, "op", SWAP[type(op)]())
        case ast.BoolOp(op=op):
            yield "and, or", put(node, "op", ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield "not", put(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", put(node, "op", ast.UAdd())
        case ast.IfExp():
            yield "choice", put(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Attribute(attr=name) if name in RENAMED:
            yield "precision" if name in ("float64", "double") else "extreme", put(node, "attr", RENAMED[name])
        case ast.If(test=test, body=[*_, last]) if isinstance(last, LEAVING):
            yield "guard", put(node, "test", ast.BoolOp(ast.And(), [ast.Constant(False), test]))
        case ast.Call(args=args, keywords=keywords):
            for i, _ in enumerate(keywords):
                yield "argument", without(keywords, i)
            if len(args) > 1:
                yield "argument", without(args, -1)
    if isinstance(node, ast.If):
        for statement in node.body:
            if isinstance(statement, ast.Return) and not _is_none(statement.value):
                yield "returned", put(statement, "value", ast.Constant(None))
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        for i, statement in enumerate(statements if isinstance(statements, list) else ()):
            if deletable(statement):
                yield "statement", replaced(statements, i)


def replaced(statements: list, at: int) -> Break:
    return lambda: statements.__setitem__(at, ast.copy_location(ast.Pass(), statements[at]))


def deletable(statement: ast.stmt) -> bool:
    """Does it act without naming anything? A name that is missing is an error at once, and tells nothing of tests."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, DELETED)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def text(node: ast.BinOp | ast.AugAssign) -> bool:
    """Are strings put together?"""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that matter to what is computed: no annotations, no words of errors, nothing for type checkers."""
    yield tree
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "type_params") or isinstance(tree, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield from nodes(child)


def mutations(tree: ast.Module) -> list[tuple[int, str, Break]]:
    """Every (line, name, change) of a module, always in the same order."""
    found, line = [], 1
    for node in nodes(tree):
        line = getattr(node, "lineno", line)
        found += [(line, name, change) for name, change in at_node(node)]
    return found
