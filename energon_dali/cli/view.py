"""`energon-dali view`: shows a dataset in the browser."""

from __future__ import annotations

from typing import Any

import click

from energon_dali.cli.dataset_options import file_options


@click.command("view")
@click.argument("path")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]")
@click.option("--open/--no-open", "opens", default=False, show_default=True, help="Open the page in the browser.")
@click.option("--encoder", default="", metavar="MODULE:CLASS", help="Show what this task encoder makes of the samples.")
@click.option("--split-part", default="train", show_default=True, help="Part of the split, for the encoder's batch.")
@click.option("--batch-size", type=click.IntRange(min=0), default=4, show_default=True, help="0: the encoder groups.")
@click.option("--packing-buffer-size", type=click.IntRange(min=1), help="Samples from which the encoder chooses packs.")
@file_options
def view(
    path: str,
    port: int,
    opens: bool,
    batch_size: int,
    **given: Any,
) -> None:
    """Show the dataset, the metadataset (.yaml), or the .jsonl file at PATH as a page in your browser.

    The page is served on this machine alone, for the address that is printed, until Ctrl-C. Nothing of the dataset is
    changed.
    """
    _require_packages()
    from energon_dali.view.app import serve
    from energon_dali.view.catalog import ViewOptions
    from energon_dali.view.site import Site

    options = ViewOptions(path, batch_size=batch_size or None, **given)
    serve(Site(options), port, lambda address: _announce(address, opens))


def _announce(address: str, opens: bool) -> None:
    click.echo(f"{address}\nThis address is for you alone. Ctrl-C ends the page.")
    if opens:
        click.launch(address)


def _require_packages() -> None:
    """Says what to install if the web server or the templates are missing.

    Raises:
        click.ClickException: They are.
    """
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f'The page needs the package {error.name}, which is not installed: `pip install "energon-dali[view]"`.'
        ) from error
