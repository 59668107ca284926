"""Renders a method's docstring as HTML: equations are typeset, and prose becomes paragraphs.

Only single symbols are converted: `w_{t+1}` becomes a w with a subscript, and `theta` a Greek
letter. The order and layout of the symbols stay as in the docstring, so the meaning cannot change.
"""

import html
import re
from collections.abc import Iterable

GREEK = {
    **dict(alpha="α", beta="β", gamma="γ", delta="δ", epsilon="ε", zeta="ζ", eta="η", theta="θ"),
    **dict(kappa="κ", lam="λ", lambda_="λ", mu="μ", nu="ν", xi="ξ", pi="π", rho="ρ", sigma="σ"),
    **dict(tau="τ", phi="φ", psi="ψ", omega="ω", Delta="Δ", Gamma="Γ", Theta="Θ", Lambda="Λ"),
    **dict(Sigma="Σ", Phi="Φ", Psi="Ψ", Omega="Ω"),
}
GREEK["lambda"] = GREEK.pop("lambda_")
OPERATORS = {"sum": "∑", "grad": "∇"}
OPERATOR = re.compile(r" ([←→=≤≥+−·/]) ")
GROUP = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|‖[^‖]*‖|\|[^|]*\|")
SHORT = 24  # the most signs in parentheses that stay on one line
UPRIGHT = {"max", "min", "mean", "argmax", "argmin", "cos", "softmax", "log", "exp", "sqrt", "clip"}
SIGNS = {"<-": "←", "->": "→", "<=": "≤", ">=": "≥", "!=": "≠", "||": "‖", "...": "…"}

MARK = r"(?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|a\(i\)|-?[A-Za-z0-9]+(?:,-?[A-Za-z]\b)?)"
TOKEN = re.compile(
    r"(?P<code>`[^`]*`|\bconfig(?:\.\w+)+|\b\w+\.py\b|(?<!\w)_\w+\.py)"
    r"|(?P<link>arXiv:\d{4}\.\d{4,5}|doi:\S+?(?=[\s),;]|$)|\bproceedings(?:\.\w+)+/\S+)"
    r"|(?P<plain>w/o\b|'s\b|\b[A-Za-z]+(?:-[A-Z][A-Za-z]+)+\b)"
    rf"|(?P<base>(?<![A-Za-z])[A-Za-z][A-Za-z0-9]*)(?P<tilde>~?)(?P<marks>(?:[_^]{MARK})*)"
    r"(?P<after>\+(?=[\s=)\]])|'{1,2}(?![A-Za-z]))?"
    rf"|(?P<marked>(?<=[)|\]])(?:[_^]{MARK})+)"
    r"|(?P<sign><-|->|<=|>=|!=|\|\||\.\.\.|(?<= )-(?= )|(?<=[ (,])-(?=[A-Za-z(]))"
)


def docstring_html(docstring: str) -> str:
    """The paragraphs of a docstring as HTML, without the first one, which is its title."""
    parts = [part for part in re.split(r"\n\s*\n", docstring)[1:] if part.strip()]
    return "\n\n".join(block(part) if is_block(part) else paragraph(part) for part in parts)


def is_block(part: str) -> bool:
    """Whether a paragraph consists of equations: lines in columns, or with an arrow."""
    first = part.split("\n")[0]
    return first.startswith("  ") or bool(re.match(r"\w+ {2,}|\w+ <- ", first))


def paragraph(text: str) -> str:
    """A paragraph of prose as HTML; symbols with an index and Greek letters are typeset."""
    return f"<p>{inline(' '.join(text.split()), in_block=False)}</p>"


def block(text: str) -> str:
    """A block of equations as an HTML table.

    Each line has a label, an equation, and a note at its end, such as the equation's number.
    """
    lines = text.split("\n")
    column = first_column(lines)
    rows = "".join(_row(line, column) for line in lines)
    return f'<div class="equations"><table class="lines">{rows}</table></div>'


def _row(line, column):
    label, rest = line[:column], line[column:]
    if label.strip() and not label.endswith(" "):  # a line without columns
        return f'<tr><td colspan="3">{unbroken(inline(line.strip(), in_block=True))}</td></tr>'
    body, note = with_note(rest.strip())
    indent = len(rest) - len(rest.lstrip()) if not label.strip() else 0
    style = f' style="padding-left:{indent * 0.5:g}em"' if indent else ""
    inside = len(label) - len(label.lstrip())
    name = "&nbsp;" * max(inside - 2, 0) + html.escape(re.sub(r" {2,}", "  ", label.strip()))
    name = name if label.strip() else ""
    return (
        f"<tr><td>{name}</td><td{style}>{unbroken(inline(body, in_block=True))}</td>"
        f"<td>{inline(note, in_block=False)}</td></tr>"
    )


def with_note(text: str) -> tuple[str, str]:
    """Split a line into its equation and the note at its end, "" if there is none."""
    apart = re.split(r" {3,}| {2,}(?=\((?:eqs?\.|Alg\.))", text)
    if len(apart) == 1 or apart[-1].startswith("="):
        return " ".join(apart), ""
    return " ".join(apart[:-1]), apart[-1]


def first_column(lines: Iterable[str]) -> int:
    """The column at which the equations begin: the one that cuts the fewest labels."""
    lines = list(lines)
    gaps = {m.end() for line in lines for m in re.finditer(r"(?<=\S) {2,}(?=\S)", line[:24])}
    if not gaps:
        return 0

    def cut(column):
        labels = [line[:column] for line in lines]
        return sum(bool(label.strip()) and not label.endswith(" ") for label in labels)

    return min((gap for gap in gaps if gap < 20), key=lambda gap: (cut(gap), -gap), default=0)


def inline(text: str, in_block: bool) -> str:
    """The text as HTML with its symbols typeset. in_block: whether it is part of an equation."""
    out, at = [], 0
    for match in TOKEN.finditer(text):
        out.append(html.escape(text[at : match.start()], quote=False))
        out.append(_token(match, text, in_block))
        at = match.end()
    return "".join([*out, html.escape(text[at:], quote=False)])


def unbroken(equation: str) -> str:
    """An equation in HTML whose lines end neither before operators nor in short parentheses."""
    equation = OPERATOR.sub("&nbsp;\\1 ", equation).replace(" .. ", "&nbsp;..&nbsp;")
    return GROUP.sub(lambda group: _short(group[0]), equation)


def _short(group):
    is_short = len(re.sub("<[^>]*>|&nbsp;", "", group)) <= SHORT
    return group.replace(" ", "&nbsp;") if is_short and "<a " not in group else group


def _token(match, text, in_block):
    token = match.group(0)
    if match["code"]:
        return f"<code>{html.escape(token.strip('`'), quote=False)}</code>"
    if match["link"]:
        kind, _, number = token.partition(":")
        sites = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
        address = sites[kind] + number if kind in sites else f"https://{token}"
        return f'<a href="{address}">{html.escape(token)}</a>'
    if match["marked"]:
        return _marks(token)
    if match["plain"]:
        return token
    if match["sign"]:
        return {"-": "−"}.get(token, SIGNS.get(token, token))
    return _symbol(match, text, in_block)


def _symbol(match, text, in_block):
    base, marks = match["base"], match["marks"]
    article = base in "aA" or (base == "I" and not in_block)
    calls = text[match.end() : match.end() + 1] == "("
    single = len(base) == 1 and (bool(marks) or calls or not article)
    if base in GREEK or single:
        head = f"<i>{GREEK.get(base, base)}{chr(0x303) if match['tilde'] else ''}</i>"
    elif base in OPERATORS and (in_block or marks or base == "grad"):
        head = OPERATORS[base]
    elif not re.search("_[a-z]{2}", marks) or base in UPRIGHT or base[0].isupper():
        head = base + match["tilde"]
    else:  # a name with an underscore is a setting
        return f"<code>{html.escape(match.group(0))}</code>"
    after = {"'": "′", "''": "″", "+": "<sup>+</sup>", None: ""}[match["after"]]
    if after in ("′", "″") and not (base in GREEK or single):
        after = match["after"]
    return head + _marks(marks) + after


def _marks(marks):
    tags = {"_": "sub", "^": "sup"}
    pairs = re.findall(rf"([_^])({MARK})", marks)
    return "".join(f"<{tags[kind]}>{_mark(of)}</{tags[kind]}>" for kind, of in pairs)


def _mark(text):
    text = text[1:-1] if text.startswith("{") else text
    if re.fullmatch(r"-?[a-zA-Z]{2}(?:,-?[a-z])?", text) and text not in GREEK:
        return f"<i>{text.replace('-', '−')}</i>"  # two indices
    return inline(text.replace("-", "−") if " " not in text else text, in_block=True)
