"""Formulas of the pages as MathML: browsers draw it and screen readers read it, with no script."""

import re

# A block of code, code in a line, or a formula: $$…$$ or $…$.
PARTS = re.compile(
    r"```.*?```|`[^`\n]*`|\$\$(.+?)\$\$|(?<![\\\w$])\$([^\s$][^$\n]*?)\$(?![\w$])", re.S
)
# Between two operators a minus is a sign, "(−1": browsers know it only at the start of a row.
SIGN = re.compile(r"(<mo[^>]*>(?!&#x00029;|&#x0005D;|&#x0007D;)[^<]*</mo>)<mo>(?=&#x02212;)")


def mathml(formula: str, display: str = "inline") -> str:
    """A formula in LaTeX as a `<math>` element, `display` "inline" or "block".

    Raises:
        ValueError: it has a command that is not known, or braces that do not match.
    """
    from latex2mathml.converter import convert

    braces = re.sub(r"\\[{}]", "", formula)
    if braces.count("{") != braces.count("}"):
        raise ValueError(f"{formula!r}: its braces do not match")
    try:
        text = convert(formula, display=display)
    except Exception as error:
        raise ValueError(f"{formula!r}: {type(error).__name__} {error}") from error
    if unknown := re.search(r"\\[a-zA-Z]+", text):
        raise ValueError(f"{formula!r}: {unknown[0]} is not known")
    return SIGN.sub(r'\1<mo form="prefix">', text)


def formulas(markdown: str) -> list[str]:
    """The formulas of a page of Markdown, without their dollars."""
    return [a or b for a, b in PARTS.findall(markdown) if a or b]
