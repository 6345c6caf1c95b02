"""HTTP: status documents and pages."""
