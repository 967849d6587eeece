"""What must hold for every notebook of the book: each guard takes a page and returns its problems, in words."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from nbformat import NotebookNode

ALLOWED_TAGS = {
    "hide-input",
    "hide-output",
    "hide-cell",
    "remove-cell",
    "nbval-ignore-output",
    "raises-exception",
    "solution",
}
CHECKED_KINDS = ("proved", "computed", "shown")
CLAIM_FIELDS = ("slug", "source_id", "statement", "kind", "verdict", "condition", "chapter")
KINDS = (*CHECKED_KINDS, "quoted", "defined")
VERDICTS = ("stands", "condition", "imprecise", "attribution", "gap")

Claim = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """One notebook: its name (path below book/, without suffix), its cells, and what the guards compare it with."""

    name: str
    notebook: NotebookNode
    claims: list[Claim] = field(default_factory=list)
    decimals_allowed: dict[str, str] = field(default_factory=dict)  # typed number → reason

    @property
    def code_cells(self) -> list[NotebookNode]:
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    @property
    def markdown(self) -> str:
        return "\n\n".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")

    @property
    def own_claims(self) -> list[Claim]:
        return [claim for claim in self.claims if claim["chapter"] == self.name]

    @property
    def is_chapter(self) -> bool:
        return "/" in self.name and not self.name.startswith("reference/")


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """Every text of a cell's outputs; HTML without its tags and attributes."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        for mime, content in output.get("data", {}).items():
            if mime == "text/html":
                yield _html_text(content)
            elif mime.startswith("text/"):
                yield content


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = 0
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style")
        self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")
        self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def _html_text(content: str) -> str:
    parser = _Text()
    parser.feed(content)
    return "".join(parser.parts)


def shown_checks(cell: NotebookNode) -> list[str]:
    """The ids of the checks that a cell's outputs show."""
    texts = [
        o.text if o.output_type == "stream" else o.get("data", {}).get("text/plain", "") for o in cell.outputs
    ]
    return re.findall(r"^✔ ([^\s:]+)", "\n".join(texts), flags=re.MULTILINE)


# ------------------------------------------------------------------------------------------------- code and outputs


def executed_in_order(page: Page) -> list[str]:
    return [
        f"code cell {n} has execution count {cell.execution_count}"
        for n, cell in enumerate(page.code_cells, start=1)
        if cell.execution_count != n
    ]


def known_tags(page: Page) -> list[str]:
    found = {tag for cell in page.notebook.cells for tag in tags(cell)}
    return [f"unknown tag {tag!r}" for tag in sorted(found - ALLOWED_TAGS)]


def no_trailing_semicolons(page: Page) -> list[str]:
    """A trailing semicolon silences nothing when the outputs are compared: write ``_ = …``."""
    problems = []
    for n, cell in enumerate(page.code_cells, start=1):
        try:
            found = [
                t
                for t in tokenize.generate_tokens(io.StringIO(cell.source).readline)
                if t.type != tokenize.COMMENT
            ]
            ends = {tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER}
            bad = any(a.string == ";" and b.type in ends for a, b in pairwise(found))
        except (tokenize.TokenError, SyntaxError):  # a magic
            bad = bool(re.search(r";\s*$", cell.source, flags=re.MULTILINE))
        if bad:
            problems.append(f"code cell {n} has a trailing semicolon")
    return problems


_PATH = re.compile(
    r"(?<![\w./:>-])/(?:home|tmp|root|usr|work|opt|var|mnt|content|Users)/|\b[A-Z]:\\(?:\w+\\|Users)"
)


def no_absolute_paths(page: Page) -> list[str]:
    texts = [(cell.source, "source") for cell in page.notebook.cells]
    for cell in page.code_cells:
        for output in cell.outputs:
            texts += [(part, "output") for part in (output.get("text"), output.get("evalue")) if part]
            texts += [(line, "traceback") for line in output.get("traceback", [])]
            texts += [(d, "output") for m, d in output.get("data", {}).items() if m.startswith("text/")]
    return [
        f"absolute path {m.group()!r} in a {where}" for text, where in texts for m in _PATH.finditer(text)
    ]


def no_warnings(page: Page) -> list[str]:
    problems = []
    for n, cell in enumerate(page.code_cells, start=1):
        if any(output.output_type == "stream" and output.name == "stderr" for output in cell.outputs):
            problems.append(f"code cell {n} writes to stderr")
        if any(re.search(r"\w*Warning\b", text) for text in output_texts(cell)):
            problems.append(f"code cell {n} shows a warning")
        if any(output.output_type == "error" for output in cell.outputs) and "raises-exception" not in tags(
            cell
        ):
            problems.append(f"code cell {n} ends in an error and is not tagged raises-exception")
    return problems


def figures_described(page: Page) -> list[str]:
    problems = [f"image without alt text: {m}" for m in re.findall(r"!\[\s*\]\([^)]*\)", page.markdown)]
    for n, cell in enumerate(page.code_cells, start=1):
        if any(mime.startswith("image/") for output in cell.outputs for mime in output.get("data", {})):
            about = cell.metadata.get("mystnb", {})
            for kind, key in (("image", "alt"), ("figure", "caption")):
                if not str(about.get(kind, {}).get(key) or "").strip():
                    problems.append(f"the figure of code cell {n} has no mystnb.{kind}.{key}")
    return problems


# -------------------------------------------------------------------------------------------------------- headings


def headings(page: Page) -> list[tuple[int, str]]:
    """Level and text of each heading, in order, those in code fences left out."""
    found = re.findall(r"^(#{1,6})\s+(.+)$", _without_fences(page.markdown), flags=re.MULTILINE)
    return [(len(marks), text.strip()) for marks, text in found]


def _without_fences(markdown: str) -> str:
    return re.sub(r"^(```+|~~~+).*?^\1\s*$", "", markdown, flags=re.MULTILINE | re.DOTALL)


def heading_ladder(page: Page) -> list[str]:
    levels = headings(page)
    cells = page.notebook.cells
    if not cells or cells[0].cell_type != "markdown" or not cells[0].source.startswith("# "):
        return ["the first cell does not start with a # title"]
    problems = [f"a second # title: {text!r}" for level, text in levels[1:] if level == 1]
    for (above, _), (level, text) in pairwise(levels):
        if level > above + 1:
            problems.append(f"heading {text!r} jumps from level {above} to level {level}")
    return problems


def exercises_solved(page: Page) -> list[str]:
    """A chapter has at least three exercises, ### Exercise 1. Title and so on, each with a hidden solution that checks."""
    if not page.is_chapter:
        return []
    numbers: list[str] = []
    solved: dict[str, bool] = {}
    problems = []
    for cell in page.notebook.cells:
        if cell.cell_type == "markdown":
            for level, text in headings(Page("", NotebookNode(cells=[cell]))):
                exercise = re.match(r"Exercise (\d+)\. \S", text)
                if exercise and level == 3:
                    numbers.append(exercise[1])
                    solved[numbers[-1]] = False
                elif re.match("exercise ", text, flags=re.IGNORECASE):
                    problems.append(f"heading {text!r} is not of the form ### Exercise 1. Title")
        elif cell.cell_type == "code" and "solution" in tags(cell):
            prompts = cell.metadata.get("mystnb", {})
            if "hide-cell" not in tags(cell) or prompts.get("code_prompt_show") != "Solution":
                problems.append("a solution is not tagged hide-cell, or its code_prompt_show is not Solution")
            if not numbers:
                problems.append("a solution stands before the first exercise")
            elif any(id.startswith("x-") for id in shown_checks(cell)):
                solved[numbers[-1]] = True
    if len(numbers) < 3:
        problems.append(f"{len(numbers)} exercises, at least 3 expected")
    if numbers != [str(i + 1) for i in range(len(numbers))]:
        problems.append(f"exercises are numbered {', '.join(numbers)}")
    problems += [
        f"exercise {n} has no solution cell with an x- check" for n, done in solved.items() if not done
    ]
    return problems


# -------------------------------------------------------------------------------------------------------- equations


def equation_labels(page: Page) -> list[str]:
    return re.findall(r"\$\$\s*\(([^)\s]+)\)", _without_fences(page.markdown))


def labels_prefixed(page: Page) -> list[str]:
    """Every displayed equation has a label that starts with the prefix of its page: that of its claims, or its name."""
    prefixes = {claim["slug"].split("-")[0] for claim in page.own_claims} or {
        page.name.split("/")[-1].split("-")[0]
    }
    problems = [
        f"equation label {label!r} does not start with {' or '.join(sorted(prefixes))}-"
        for label in equation_labels(page)
        if label.split("-")[0] not in prefixes or "-" not in label
    ]
    blocks = re.findall(r"\$\$(.+?)\$\$[ \t]*(\([^)\s]+\))?", _without_fences(page.markdown), flags=re.DOTALL)
    problems += [f"equation without a label: {block.strip()[:60]}" for block, label in blocks if not label]
    return problems


def labels_unique(pages: list[Page]) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for page in pages:
        for label in equation_labels(page):
            if label in seen:
                problems.append(f"equation label {label!r} in {page.name} and in {seen[label]}")
            seen[label] = page.name
    return problems


# ----------------------------------------------------------------------------------------------------------- claims


def checks_are_claims(page: Page) -> list[str]:
    """Every check names a claim of a kind that a cell can decide, in a chapter one of its own; or it starts with x-."""
    claims = {claim["slug"]: claim for claim in page.claims}
    problems = []
    for id in dict.fromkeys(id for cell in page.code_cells for id in shown_checks(cell)):
        slug = id.split("/")[0]
        if id.startswith("x-"):
            continue
        if slug not in claims:
            problems.append(f"check {id!r} is no claim of claims.yml")
        elif page.is_chapter and claims[slug]["chapter"] != page.name:
            problems.append(f"check {id!r} belongs to {claims[slug]['chapter']}")
        elif claims[slug]["kind"] not in CHECKED_KINDS:
            problems.append(f"check {id!r} is {claims[slug]['kind']}: no cell can decide it")
    return problems


def claims_are_checked(page: Page) -> list[str]:
    """Every claim of this page that is proved, computed or shown has a check here, outside the solutions."""
    cells = [cell for cell in page.code_cells if "solution" not in tags(cell)]
    checked = {id.split("/")[0] for cell in cells for id in shown_checks(cell)}
    return [
        f"claim {claim['slug']!r} ({claim['kind']}) has no check"
        for claim in page.own_claims
        if claim["kind"] in CHECKED_KINDS and claim["slug"] not in checked
    ]


def no_swallowed_checks(page: Page) -> list[str]:
    """A check inside try could fail in silence."""
    problems = []
    for n, cell in enumerate(page.code_cells, start=1):
        try:
            tree = ast.parse(re.sub(r"^\s*[%!].*$", "pass", cell.source, flags=re.MULTILINE))
        except SyntaxError:
            continue
        for block in (node for node in ast.walk(tree) if isinstance(node, ast.Try)):
            calls = [node for node in ast.walk(block) if isinstance(node, ast.Call)]
            if any(isinstance(call.func, ast.Name) and call.func.id == "check" for call in calls):
                problems.append(f"code cell {n} has a check inside try")
    return problems


def no_empty_checks(page: Page) -> list[str]:
    """A check whose two sides are written constants, or the same expression, cannot fail."""
    problems = []
    for n, cell in enumerate(page.code_cells, start=1):
        try:
            tree = ast.parse(re.sub(r"^\s*[%!].*$", "pass", cell.source, flags=re.MULTILINE))
        except SyntaxError:
            continue
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Name) and call.func.id == "check"):
                continue
            given = dict(zip(("id", "left", "right"), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg in ("left", "right")}
            left, right = given.get("left"), given.get("right", ast.Constant(True))
            if left is None:
                problems.append(f"code cell {n} has a check without a left side")
            elif ast.dump(left) == ast.dump(right):
                problems.append(f"code cell {n} checks {ast.unparse(left)} against itself")
            elif not _has_names(left) and not _has_names(right):
                problems.append(
                    f"code cell {n} checks the constants {ast.unparse(left)} and {ast.unparse(right)}"
                )
    return problems


def _has_names(node: ast.expr) -> bool:
    """Whether an expression reads anything; constructors of exact numbers do not count."""
    constructors = {
        "Fraction",
        "Rational",
        "Integer",
        "float",
        "int",
        "list",
        "tuple",
        "sympy",
        "torch",
        "tensor",
    }
    return any(isinstance(part, ast.Name) and part.id not in constructors for part in ast.walk(node))


def ledger_is_consistent(claims: list[Claim], chapters: list[str]) -> list[str]:
    """The entries of claims.yml: fields, kinds, verdicts, prefixes, one slug and one source each."""
    problems = []
    owner: dict[str, str] = {}
    for claim in claims:
        slug = claim.get("slug", "?")
        if tuple(claim) != CLAIM_FIELDS:
            problems.append(f"{slug}: fields are {', '.join(claim)}, expected {', '.join(CLAIM_FIELDS)}")
            continue
        if any(not isinstance(claim[name], str) for name in CLAIM_FIELDS):
            problems.append(f"{slug}: every field is a string")
            continue
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", slug) or slug.startswith("x-"):
            problems.append(f"{slug}: not of the form prefix-words")
        if claim["kind"] not in KINDS:
            problems.append(f"{slug}: kind {claim['kind']!r} is none of {', '.join(KINDS)}")
        if claim["verdict"] not in VERDICTS:
            problems.append(f"{slug}: verdict {claim['verdict']!r} is none of {', '.join(VERDICTS)}")
        if not claim["statement"].strip() or "\n" in claim["statement"]:
            problems.append(f"{slug}: the statement is one line")
        if claim["verdict"] != "stands" and not claim["condition"].strip():
            problems.append(f"{slug}: verdict {claim['verdict']!r} needs a condition")
        if claim["chapter"] not in chapters:
            problems.append(f"{slug}: chapter {claim['chapter']!r} is not in _toc.yml")
        if owner.setdefault(slug.split("-")[0], claim["chapter"]) != claim["chapter"]:
            problems.append(f"{slug}: its prefix belongs to {owner[slug.split('-')[0]]}")
    for name in ("slug", "source_id"):
        values = [claim.get(name) for claim in claims]
        problems += [
            f"{name} {value!r} appears twice" for value in sorted({v for v in values if values.count(v) > 1})
        ]
    return problems


# --------------------------------------------------------------------------------------------------------- decimals

_NOT_TYPED = [
    r"\{cite[^}]*\}`[^`]*`",
    r"\{eq\}`[^`]*`",
    r"https?://\S+",
    r"\]\([^)]*\)",
    r"(?i:arxiv)[:\s]*\d{4}\.\d{4,5}(?:v\d+)?",
    r"\b\d{4}\.\d{5}(?:v\d+)?\b",
    r"\d+(?:\.\d+){2,}\w*",  # versions and sections with three parts
    r"(?i:\bsections?|§|\bsec\.|\bappendix|\bapp\.|\bchapters?|\bversions?|\bv)\s*[A-Z]?\.?\d+(?:\.\d+)*",
    r"\b(?:TRL|verl|OpenRLHF|SkyRL|NeMo-RL|PyTorch|torch|transformers|Python|NumPy|SymPy)\s+v?\d+\.\d+",
]
_TYPED = re.compile(
    r"(?P<sign>(?:\\pm\s*|±\s*)|(?<![\w.)\]}|])\s?[-−](?=\d))?(?<![\w.])(?P<number>\d+\.\d+(?:[eE][-+−]?\d+)?)(?P<percent>\s*\\?%)?"
)
_SHOWN = re.compile(
    r"\\frac\{(?P<top>\d+)\}\{(?P<bottom>\d+)\}"
    r"|(?P<minus>[-−])?(?<![\w.])(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:/(?P<over>\d+)(?![\d.]))?"
)


@dataclass(frozen=True)
class Decimal:
    """A decimal number as it is typed."""

    text: str
    value: float
    half_unit: float
    signed: bool  # a minus sign stands before it
    percent: bool


def typed_decimals(text: str) -> list[Decimal]:
    """The decimal numbers of a text, without those in citations, addresses, versions and section numbers."""
    text = _without_fences(text)
    for pattern in _NOT_TYPED:
        text = re.sub(pattern, " ", text)
    found = []
    for match in _TYPED.finditer(text):
        number = match["number"].replace("−", "-")
        mantissa, _, exponent = number.lower().partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(mantissa.split(".")[1]))
        signed = bool(match["sign"]) and match["sign"].strip() in ("-", "−")
        found.append(
            Decimal(
                ("-" if signed else "") + number,
                -float(number) if signed else float(number),
                unit / 2,
                signed,
                bool(match["percent"]),
            )
        )
    return found


def shown_numbers(page: Page) -> list[float]:
    """The numbers in the outputs, but not those in the lines of checks, nor in outputs that are not compared."""
    numbers = []
    for cell in page.code_cells:
        if "nbval-ignore-output" in tags(cell):
            continue
        for text in output_texts(cell):
            lines = (line for line in text.splitlines() if not line.strip().startswith("✔"))
            for match in _SHOWN.finditer("\n".join(lines)):
                if match["top"]:
                    bottom = int(match["bottom"])
                    numbers += [int(match["top"]) / bottom] if bottom else []
                    continue
                value = float(match["number"])
                if match["over"] and int(match["over"]):
                    value = float(Fraction(match["number"].rstrip(".")) / int(match["over"]))
                numbers.append(-value if match["minus"] else value)
    return numbers


def _is_shown(decimal: Decimal, numbers: list[float]) -> bool:
    for number in numbers:
        for value in (number, 100 * number) if decimal.percent else (number,):
            distance = abs(value - decimal.value) if decimal.signed else abs(abs(value) - decimal.value)
            if distance <= decimal.half_unit * (1 + 1e-6):
                return True
    return False


def _unshown(page: Page, text: str) -> Iterator[str]:
    numbers = shown_numbers(page)
    for decimal in dict.fromkeys(typed_decimals(text)):
        if decimal.text not in page.decimals_allowed and not _is_shown(decimal, numbers):
            yield decimal.text


def decimals_shown(page: Page) -> list[str]:
    """Every decimal that is typed in the text, a caption or an alt text rounds from a number in an output of the page."""
    described = [
        str(cell.metadata.get("mystnb", {}).get(kind, {}).get(key, ""))
        for cell in page.code_cells
        for kind, key in (("image", "alt"), ("figure", "caption"))
    ]
    text = "\n\n".join([page.markdown, *described])
    problems = [
        f"{number} is typed, but no output of the page rounds to it" for number in _unshown(page, text)
    ]
    typed = {decimal.text for decimal in typed_decimals(text)}
    problems += [
        f"{number} is on the list of allowed decimals, but not typed"
        for number in page.decimals_allowed
        if number not in typed
    ]
    return problems


def claim_decimals_shown(page: Page) -> list[str]:
    """Every decimal in the statement of a checked claim of this page rounds from a number in an output too."""
    return [
        f"{number} stands in claim {claim['slug']!r}, but no output of the page rounds to it"
        for claim in page.own_claims
        if claim["kind"] in CHECKED_KINDS
        for number in _unshown(page, claim["statement"])
    ]


PAGE_GUARDS: list[Callable[[Page], list[str]]] = [
    executed_in_order,
    known_tags,
    no_trailing_semicolons,
    no_absolute_paths,
    no_warnings,
    figures_described,
    heading_ladder,
    exercises_solved,
    labels_prefixed,
    checks_are_claims,
    claims_are_checked,
    no_swallowed_checks,
    no_empty_checks,
    decimals_shown,
    claim_decimals_shown,
]
