"""HTML that runs a widget's own JavaScript on a page without a kernel, without a network and from disk."""

import hashlib
import json

# The part of anywidget's model that the front ends use, kept in the page.
_BOOT = """
const state = %(state)s;
const listeners = new Map();
const model = {
  get: (name) => state[name],
  set(name, value) {
    state[name] = value;
    (listeners.get(`change:${name}`) ?? new Set()).forEach((listener) => listener());
  },
  save_changes() {},
  on: (event, listener) => listeners.set(event, (listeners.get(event) ?? new Set()).add(listener)),
  off: (event, listener) => listeners.get(event)?.delete(listener),
};
const el = document.querySelector('[data-grpo-widget="%(key)s"]:not([data-live])');
el.dataset.live = "";
render({ model, el });
"""


def static_page_html(esm: str, css: str, state: dict[str, object], body: str) -> str:
    """The widget as HTML that needs nothing else: its style, ``body``, and a script that replaces ``body``.

    Args:
        esm: the widget's JavaScript module, without imports. It declares a top-level
            ``function render({ model, el })``, the one of its default export.
        css: its style sheet, scoped under a class of its own.
        state: initial values of the synced traits that ``render`` reads; anything JSON can hold.
        body: HTML shown before the script runs, and instead of it where scripts are off.

    Returns:
        The HTML, the same for the same input. Text that would end the script or the style early is escaped.

    Raises:
        ValueError: the module does not declare ``render``, or imports another module.
    """
    lines = esm.splitlines()
    if not any(line.startswith("function render(") for line in lines):
        raise ValueError("esm has no top-level 'function render('; declare it and export it as the default's")
    if any(line.startswith("import ") for line in lines):
        raise ValueError("esm imports a module, which a page from disk cannot load; put that code inside esm")
    key = hashlib.sha256(json.dumps([esm, css, state, body]).encode()).hexdigest()[:12]
    boot = _BOOT % {"state": json.dumps(state).replace("<", "\\u003c"), "key": key}
    style, script = css.replace("</", "<\\/"), esm.replace("</", "<\\/").replace("<!--", "<\\!--")
    return (
        f"<style>\n{style}</style>\n"
        f'<div data-grpo-widget="{key}">{body}</div>\n'
        f'<script type="module">\n{script}{boot}</script>'
    )
