"""The pages about what the user's task encoder makes of samples; each function answers one address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.guard import DATA_POLICY
from energon_dali.view.pages import sample_of, show, site_of
from energon_dali.view.scan_pages import way_back

if TYPE_CHECKING:
    from energon_dali.view.encoded import EncodedViews


def _encoded(request: Request) -> EncodedViews:
    found = site_of(request).encoded
    if found is None:
        raise HTTPException(404, "No task encoder was given. Start the command with --encoder MODULE:CLASS.")
    return found


def batch(request: Request) -> Response:
    """Answers `/encoder`: the first batch of training."""
    view = _encoded(request).batch()
    return show(request, "encoder", entry=None, view=view, sample=None, address="/encoder")


def sample(request: Request) -> Response:
    """Answers `/data/N/sample/I/encoded`: what the encoder makes of a sample."""
    encoded = _encoded(request)
    entry, found = sample_of(request)
    address = f"/data/{entry.number}/sample/{found.index}"
    return show(
        request,
        "encoder",
        entry=entry,
        view=encoded.sample(entry.path, found.index, _split_of(entry, found.index)),
        sample=found,
        address=f"{address}/encoded",
        original=address,
    )


def _split_of(entry: CatalogEntry, index: int) -> str:
    """Returns the split, of the metadataset if there is one, in which a sample is; "train" if it is in none."""
    dataset = entry.opened

    def holds(part: str) -> bool:
        return not dataset.split_parts or (
            part in dataset.split_parts and dataset.rows(part).position(index) is not None
        )

    if entry.uses:
        return next((use.split for use in entry.uses if holds(use.split_part)), entry.uses[0].split)
    return next((part for part in dataset.split_parts if holds(part)), "train")


def image(request: Request) -> Response:
    """Answers `/encoder/image/VIEW/NUMBER`: an image of a view."""
    found = _encoded(request).image(request.path_params["view"], request.path_params["number"])
    if found is None:
        raise HTTPException(404, "This image is no longer kept. Open its page again.")
    return Response(found, 200, {"content-security-policy": DATA_POLICY}, "image/png")


def reload(request: Request) -> Response:
    """Answers POST `/encoder/reload`: loads the encoder again, after a change of its code."""
    _encoded(request).reload()
    return RedirectResponse(way_back(request), 303)
