"""How the page looks."""

CSS = """
:root { --ink: #20242a; --soft: #5b626c; --line: #dfe3e8; --paper: #ffffff; --wash: #f6f7f9; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 80px; }
h1 { font-size: 2rem; line-height: 1.2; margin: 4px 0 12px; }
h2 { font-size: 1.25rem; margin: 0 0 6px; }
.kicker { text-transform: uppercase; letter-spacing: .08em; font-size: .75rem; color: var(--accent); margin: 0; }
.lead { max-width: 75ch; color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; }
section { padding: 20px 22px; margin: 18px 0; }
.verdict p { margin: 6px 0; }
.verdict .gate { font-weight: 600; border-left: 4px solid #8a8f98; padding-left: 12px; margin-bottom: 12px; }
.verdict .gate.open { border-color: #00664c; }
.text { color: var(--soft); max-width: 85ch; margin: 0 0 12px; font-size: .95rem; }
.small { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: right; font-weight: 600; color: var(--soft); }
th { padding: 6px 10px; border-bottom: 2px solid var(--line); }
th:first-child { text-align: left; }
td { padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td:not(.number):not(:first-child) { text-align: right; }
tr.treated td { background: #fff4ea; }
.interval { color: var(--soft); font-size: .82rem; }
td.better { color: #00664c; font-weight: 600; }
td.worse { color: #b3261e; font-weight: 600; }
td.no { color: var(--soft); }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--accent); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
pre { background: var(--wash); padding: 12px; border-radius: 8px; overflow-x: auto; font-size: .8rem; }
code { font-size: .85em; } svg { max-width: 100%; height: auto; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
