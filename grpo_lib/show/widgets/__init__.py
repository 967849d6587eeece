"""Interactive parts of the book: beside a kernel each is an anywidget, on the site it runs without a
kernel."""

from grpo_lib.show.widgets.group_advantages import GroupAdvantagesTable

__all__ = ["GroupAdvantagesTable"]
