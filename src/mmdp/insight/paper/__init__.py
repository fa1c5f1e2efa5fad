"""The paper's experiments: cases, tables, figure, and its printed figures as data."""
