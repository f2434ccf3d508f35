"""The paper from its results: numbers, the Markdown post, the page that stands alone, and its explorer."""
