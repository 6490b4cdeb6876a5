"""Reports: one function turns an evaluation into a document (plain JSON data), one renderer per form turns that into text.

A renderer needs nothing but the document, so a stored ``report.json`` can be shown again in any form.
"""
