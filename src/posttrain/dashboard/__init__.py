"""How a person sees a run: one HTML file, and the table at its end in the terminal. Imports no torch."""

from posttrain.dashboard.report import render
from posttrain.dashboard.terminal import print_summary

__all__ = ["print_summary", "render"]
