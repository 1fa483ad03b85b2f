"""A host as text or as a picture: its slots, their stages and alphas."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.kasmina.drawing import Station, describe_slot, draw_stations
from esper.leyline import HostProtocol

Frame: TypeAlias = NDArray[np.uint8] | str
RENDER_MODES = ("rgb_array", "ansi")
_DPI = 100


def require_render_mode(mode: str | None) -> str | None:
    """The mode itself; raises for one that does not exist."""
    if mode is not None and mode not in RENDER_MODES:
        raise ValueError(f"render_mode is {mode!r}; expected one of {', '.join(RENDER_MODES)}, or None")
    return mode


def render_host(host: HostProtocol, mode: str) -> Frame:
    """Text for "ansi", a picture for "rgb_array"."""
    return host_text(host) if mode == "ansi" else host_picture(host)


def host_text(host: HostProtocol) -> str:
    """One line for the host, one per slot."""
    names = host.slot_config.slot_ids
    width = max(map(len, names))
    slots = [
        f"  {name:{width}}  {describe_slot(slot)}" for name, slot in zip(names, host.snapshots(), strict=True)
    ]
    return "\n".join([headline(host), *slots])


def headline(host: HostProtocol) -> str:
    """Epoch, validation and parameters in one line."""
    report = host.report
    accuracy = "unknown" if report.validation_accuracy is None else f"{report.validation_accuracy:.3f}"
    return (
        f"epoch {report.epoch}: validation accuracy {accuracy}, loss {report.validation_loss:.3f}; "
        f"host {host.host_parameters:,} parameters, grown {host.added_parameters:,}"
    )


def host_picture(host: HostProtocol) -> NDArray[np.uint8]:
    """(height, width, 3) in 0..255."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stations = [
        Station(slot.name, f"{slot.layout} x {slot.channels}", None, slot) for slot in host.snapshots()
    ]
    figure = Figure(figsize=(9.0, 0.62 * len(stations) + 0.8), facecolor="white", dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    draw_stations(figure, stations, headline(host))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()
