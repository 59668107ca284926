"""Checks the pages of notebooks on the documentation site."""

import optional

optional.module("latex2mathml")
import notebook_pages  # noqa: E402


def test_badges_lead_to_addresses_that_exist_and_formulas_can_be_broken_apart():
    badge = '<a href="https://colab.research.google.com/github/{}/x/a.ipynb"><img src="{}"/></a>'
    image = "https://colab.research.google.com/badge.svg"
    assert 'href="../colab.html"' in notebook_pages.offline(badge.format("_OWNER_", image))
    page = notebook_pages.offline(badge.format("someone", image))
    assert "github/someone/x" in page and ">Open in Colab</a>" in page
    page = notebook_pages.offline(r"<p>Let $$a = 1, \qquad b = 2$$ and $c$.</p>")
    assert page.count("<math") == 3 and page.count('display="block"') == 2
    assert page.startswith('<p>Let <span class="formulas"><math')
