"""Reports of a diagnosis: one document (plain JSON data), shown as text or as a page; ``probe`` fills in the same document's ``rows``."""
