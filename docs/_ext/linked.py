"""Names of the packages in code on a page lead to their pages of the reference.

Pages have plain code, `numpyro_fwd.FMALA`, `FMALA` or `families.smooth`, which hosts of code show
as it stands.
"""

from collections.abc import Container
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform


def full_name(text: str, known: Container[str]) -> str | None:
    """The name of the reference that code on a page is, if it is one."""
    # of blackjax_ext alone no short names: `acceptance` is an argument on most pages
    owners = ["", "numpyro_fwd.", *(["blackjax_ext."] if "." in text else [])]
    return next((owner + text for owner in owners if owner + text in known), None)


def is_within(node: nodes.Node | None, kinds: Any) -> bool:
    """Whether a node is of some kinds, or lies in one that is."""
    return node is not None and (isinstance(node, kinds) or is_within(node.parent, kinds))


class LinkNames(SphinxPostTransform):
    """Links around code, when all pages have been read and all names are known."""

    default_priority = 20  # after links of the page itself

    def run(self, **kwargs) -> None:
        """Link the names of a page, but not to itself, and not in headings or within links."""
        known = self.env.domains["py"].objects
        for code in list(self.document.findall(nodes.literal)):
            name = full_name(code.astext(), known)
            if name is None or known[name].docname == self.env.docname:
                continue
            if is_within(code, nodes.title | nodes.reference):
                continue
            page = self.app.builder.get_relative_uri(self.env.docname, known[name].docname)
            uri = f"{page}#{known[name].node_id}"
            code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri))


def setup(app):
    """Link pages when they are written."""
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
