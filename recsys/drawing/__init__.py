"""Pictures as SVG and pages as one HTML file, from plain numbers."""
