"""A benchmark as one page that anybody can open: the verdict, the table, and the pictures behind them."""

from esper.karn.report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
