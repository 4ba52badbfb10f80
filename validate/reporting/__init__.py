"""The report: closed forms, published numbers, device fits and measurements in one self-contained HTML file."""
