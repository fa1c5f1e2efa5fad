"""Tests of what a decision may depend on."""
