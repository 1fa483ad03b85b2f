"""A benchmark as one HTML page: the verdict, the table, and the figures behind them."""

from esper.karn.report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
