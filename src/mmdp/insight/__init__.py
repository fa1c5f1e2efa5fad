"""Answers for people: measures, economics, plots, reports, exports, studies."""
