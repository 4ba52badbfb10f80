"""The report: closed forms, published numbers and device fits in one self-contained HTML file."""
