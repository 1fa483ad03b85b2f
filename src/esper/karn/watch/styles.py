"""How the page looks, in one place; colours come from the palette."""

from esper.karn.watch.palette import DARK, LIGHT, Theme


def _colours(theme: Theme) -> str:
    return (
        f"--page: {theme.page}; --card: {theme.card}; --text: {theme.text}; --faint: {theme.faint}; "
        f"--line: {theme.grid}; --mark: {theme.runs[0]};"
    )


CSS = f"""
body {{ {_colours(LIGHT)} }}
body.body--dark {{ {_colours(DARK)} }}
body, .q-page, .nicegui-content {{ background: var(--page); color: var(--text); }}
body {{ font-family: system-ui, sans-serif; font-size: 14px; line-height: 1.35; margin: 0; }}
.nicegui-content {{ padding: 0; gap: 0; align-items: stretch; }}
.top {{ display: flex; align-items: center; gap: 14px; padding: 6px 16px; background: var(--card);
  border-bottom: 1px solid var(--line); color: var(--text); min-height: 50px; box-shadow: none; }}
.top .brand {{ font-weight: 700; font-size: 16px; white-space: nowrap; }}
.top .grow {{ flex: 1; }}
.top a {{ color: var(--faint); text-decoration: none; white-space: nowrap; font-size: 13px; }}
.top a:hover, .top a:focus {{ color: var(--text); text-decoration: underline; }}
.sheet {{ max-width: 1600px; width: 100%; margin: 0 auto; padding: 8px 16px 40px; box-sizing: border-box;
  display: flex; flex-direction: column; gap: 8px; }}
.notice {{ border-left: 4px solid var(--mark); background: var(--card); padding: 6px 12px; }}
.tiles {{ display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 8px; width: 100%; }}
.tile, .panel {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px; min-width: 0; }}
.tile {{ padding: 6px 12px; }}
.tile .name {{ color: var(--faint); font-size: 12px; }}
.tile .value {{ font-size: 16px; line-height: 24px; font-weight: 650; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }}
.tile .detail {{ color: var(--faint); font-size: 12px; overflow-wrap: anywhere; }}
.panel {{ overflow: hidden; }}
.padded {{ padding: 10px 12px; }}
.section {{ font-size: 15px; font-weight: 650; margin: 4px 0 0; line-height: 22px; letter-spacing: 0;
  scroll-margin-top: 8px; }}
.section .why {{ font-weight: 400; color: var(--faint); font-size: 13px; }}
.grid {{ display: grid; gap: 8px; width: 100%; }}
.three {{ grid-template-columns: repeat(3, minmax(0, 1fr)); }}
.four {{ grid-template-columns: repeat(4, minmax(0, 1fr)); }}
.five {{ grid-template-columns: repeat(5, minmax(0, 1fr)); }}
.wide {{ grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }}
.thirds {{ grid-template-columns: minmax(0, 3fr) minmax(0, 5fr) minmax(0, 4fr); }}
.tall {{ height: 228px; width: 100%; }}
.low {{ height: 186px; width: 100%; }}
.course {{ height: 300px; width: 100%; }}
.scroll {{ overflow: auto; max-height: 420px; width: 100%; box-sizing: border-box; }}
.picker {{ display: flex; align-items: center; gap: 10px; width: 100%; flex-wrap: wrap; }}
.scrubber {{ flex: 1; accent-color: var(--mark); height: 22px; }}
.facts {{ display: grid; grid-template-columns: auto 1fr; gap: 2px 14px; width: 100%; font-size: 13px; }}
.facts .k {{ color: var(--faint); white-space: nowrap; }}
.facts .v {{ overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }}
.warning {{ display: grid; grid-template-columns: 220px 130px 1fr; gap: 12px; width: 100%; font-size: 13px;
  padding: 5px 12px; border-top: 1px solid var(--line); }}
.warning:first-child {{ border-top: 0; }}
.warning .n {{ font-weight: 600; overflow-wrap: anywhere; }}
.faint {{ color: var(--faint); font-size: 13px; }}
.sheet .q-table__container {{ background: var(--card); color: var(--text); width: 100%; box-shadow: none;
  border: 1px solid var(--line); border-radius: 8px; }}
.q-field__native, .q-field__label, .q-field__append, .q-field__input {{ color: var(--text) !important; }}
:focus-visible {{ outline: 2px solid var(--mark); outline-offset: 2px; }}
@media (max-width: 900px) {{
  .three, .four, .five, .wide, .thirds {{ grid-template-columns: minmax(0, 1fr); }}
  .tiles {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
  .top {{ flex-wrap: wrap; }}
}}
"""

STATIC_CSS = """
h1 { font-size: 18px; margin: 4px 0; }
h1 .why { font-weight: 400; color: var(--faint); font-size: 14px; margin-left: 8px; }
table.panel { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { padding: 4px 12px; text-align: right; border-top: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; border-top: 0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
"""
