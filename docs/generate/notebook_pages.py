"""Makes the pages of notebooks readable without a network and without JavaScript."""

import html
import re

from latex2mathml.converter import convert

KEPT = re.compile(r"(<(?:pre|code|script|style)\b.*?</(?:pre|code|script|style)>)", re.DOTALL)
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\\w$])\$(?!\s)([^$<]+?)(?<!\s)\$(?!\d)", re.DOTALL)
MATHJAX = re.compile(r"<script[^>]*mathjax[^>]*>.*?</script>", re.DOTALL | re.IGNORECASE)
NO_OWNER = re.compile(r'<a [^>]*href="https://colab[^"]*/_OWNER_/[^"]*"[^>]*>.*?</a>', re.DOTALL)
ON_COLAB = '<a href="../colab.html">How to run this notebook on Colab</a>'
BADGE = re.compile(r'<img[^>]*src="https://colab[^"]*"[^>]*/?>')
LINK = re.compile(r'href="([\w-]+)\.ipynb"')


def offline(page: str) -> str:
    """The HTML page of a notebook with MathML, and without parts loaded from a network.

    Formulas with a `\\qquad` between them are beside each other if the page is wide enough.
    """
    page = MATHJAX.sub("", page)
    page = NO_OWNER.sub(ON_COLAB, page)  # the repository has no address yet: docs/colab.md
    page = BADGE.sub("Open in Colab", page)
    parts = KEPT.split(LINK.sub(r'href="\1.html"', page))
    return "".join(part if k % 2 else MATH.sub(_mathml, part) for k, part in enumerate(parts))


def _mathml(match):
    if match[1] is None:
        return convert(html.unescape(match[2]).replace("\n", " "), display="inline")
    formulas = html.unescape(match[1]).replace("\n", " ").split("\\qquad")
    lines = "".join(convert(formula, display="block") for formula in formulas)
    return f'<span class="formulas">{lines}</span>'
