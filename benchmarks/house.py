"""How much there is to hold in mind: lines, comments, attributes, arguments, branches, and the way of one request.

``python -m benchmarks.house`` prints two tables. Times are measured elsewhere; here everything is counted, so that two
versions can be compared on any machine.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx2

import paceline
from benchmarks.wrapper import ANSWER, HEADERS, QUOTAS, URL, body

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "paceline"

WIDE = 120
"""Characters of a line; the check of the formatter leaves strings and comments alone."""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCH = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)


@dataclass
class Module:
    """One file, read once.

    Attributes:
        path: Where it is.
        tree: Its syntax.
        code: The numbers of its lines without blank ones, comments and docstrings.
        comments: How many lines are a comment and nothing else.
    """

    path: Path
    tree: ast.Module = field(init=False)
    code: set[int] = field(init=False)
    comments: int = field(init=False)

    def __post_init__(self) -> None:
        text = self.path.read_text("utf-8")
        self.tree = ast.parse(text)
        self.code, own = set(), set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                own.add(token.start[0])
            elif token.string.strip() and token.type != tokenize.ENDMARKER:
                self.code.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                self.code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        self.comments = len(own - self.code)

    @property
    def package(self) -> str:
        """The folder below ``paceline``, or the file's own name."""
        return self.path.relative_to(SOURCE).parts[0].removesuffix(".py")

    def each(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """All nodes of these kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


def attributes(of: ast.ClassDef) -> set[str]:
    """What an object of the class has: annotated in its body, or assigned to ``self``."""
    found = {
        node.target.id for node in of.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(of):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found |= {node.attr} if node.value.id == "self" else set()
    return found


def arguments(of: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many it takes, without ``self`` and ``cls``."""
    given = [*of.args.posonlyargs, *of.args.args, *of.args.kwonlyargs]
    return sum(each.arg not in {"self", "cls"} for each in given)


def branches(of: ast.AST) -> int:
    """Cyclomatic complexity: each branch, each further operand of ``and`` and ``or``, and one. Inner functions count themselves."""
    count, rest = 1, list(ast.iter_child_nodes(of))
    while rest:
        node = rest.pop()
        if isinstance(node, (*FUNCTION, ast.Lambda)):
            continue
        count += isinstance(node, BRANCH)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        rest += ast.iter_child_nodes(node)
    return count


@dataclass
class Way:
    """What one request runs through: calls of paceline's functions, the files they are in, and calls from one file to another."""

    calls: int = 0
    crossings: int = 0
    files: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.calls} / {len(self.files)} / {self.crossings}"

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count while the block runs, in this thread."""
        prefix = str(SOURCE)

        def seen(frame: FrameType, event: str, _: object) -> None:
            name = frame.f_code.co_filename
            if event == "call" and name.startswith(prefix):
                self.calls += 1
                self.files.add(name)
                caller = frame.f_back
                self.crossings += caller is not None and caller.f_code.co_filename != name

        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(None)


class Answers(httpx2.BaseTransport):
    """Answers at once, and refuses as many requests before it as it was told to."""

    refusals = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        status, headers = (429, {**HEADERS, "retry-after": "0"}) if self.refusals else (200, HEADERS)
        self.refusals = max(self.refusals - 1, 0)
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(ANSWER), request=request)


def ways() -> Iterator[tuple[str, Way]]:
    """The way of a request by hand, through a paced client, and of one that is refused once."""
    limiter = paceline.Limiter({"p": QUOTAS})

    def by_hand() -> None:
        with limiter.acquire("p", tokens=460) as permit:
            permit.settle(tokens=440)

    yield "by hand", _way(by_hand)
    inner = Answers()
    with httpx2.Client(transport=inner) as client:
        paceline.Limiter({"openai/*": QUOTAS}).attach(client)
        content = body(2_000)

        def call() -> None:
            client.post(URL, content=content)

        yield "HTTP", _way(call)
        inner.refusals = 1
        yield "HTTP, refused with a 429 and then answered: both attempts", _way(call, warm=0)


def _way(run: Callable[[], None], warm: int = 5) -> Way:
    for _ in range(warm):
        run()
    way = Way()
    with way.followed():
        run()
    return way


def rows(modules: Iterable[Module]) -> Iterator[tuple[str, str]]:
    """What stands in the second table, as name and figure."""
    modules = list(modules)
    code = sum(len(module.code) for module in modules)
    yield "own-line comments in 100 lines of code", f"{100 * sum(module.comments for module in modules) / code:.1f}"
    classes = [node for module in modules for node in module.each(ast.ClassDef) if isinstance(node, ast.ClassDef)]
    yield "classes with more than 12 attributes", str(sum(len(attributes(each)) > 12 for each in classes))
    functions = [(module, node) for module in modules for node in module.each(*FUNCTION) if isinstance(node, FUNCTION)]
    yield "functions with more than 7 parameters", str(sum(arguments(node) > 7 for _, node in functions))
    hardest = sorted(((branches(node), f"{module.path.stem}.{node.name}") for module, node in functions), reverse=True)
    yield "functions with a complexity above 15", str(sum(count > 15 for count, _ in hardest))
    yield "the most complex", ", ".join(f"{name} {count}" for count, name in hardest[:5])
    owners = Counter(node.name for each in classes for node in each.body if isinstance(node, FUNCTION))
    shared = [(name, count) for name, count in owners.most_common() if not name.startswith("__")]
    yield "methods of most classes", ", ".join(f"{name} {count}" for name, count in shared[:5])
    wide = sum(
        len(line) > WIDE
        for module in modules
        if module.package in {"core", "pacing"}
        for line in module.path.read_text("utf-8").splitlines()
    )
    yield f"lines above {WIDE} characters in core and pacing", str(wide)
    numbers = [
        node for module in modules if module.package == "core"
        for node in module.tree.body if isinstance(node, ast.AnnAssign | ast.Assign)
        if any(isinstance(each, ast.Constant) and type(each.value) in {int, float} for each in ast.walk(node.value or node))
    ]  # fmt: skip
    yield "module constants of core with a number", str(len(numbers))
    for name, way in ways():
        yield f"calls / files / crossings, {name}", str(way)


def main() -> None:
    """Print the lines of each package, and the other figures."""
    modules = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
    lines: dict[str, int] = defaultdict(int)
    for module in modules:
        lines[module.package] += len(module.code)
    for package, count in sorted(lines.items(), key=lambda each: -each[1]):
        print(f"{count:7,}  {package}")
    print(f"{sum(lines.values()):7,}  lines of code, without comments and docstrings\n")
    for name, figure in rows(modules):
        print(f"{name}: {figure}")


if __name__ == "__main__":
    main()
