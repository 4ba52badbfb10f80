"""The report: closed forms, published numbers and device fits as one page of Markdown."""
