"""Models in and out: files, posteriors, step functions, benchmark domains, other packages."""
