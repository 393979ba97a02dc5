"""Torch's Lanczos filter, which transformers' torchvision backends use for bytes on a CPU."""

from __future__ import annotations

from energon_dali.decode.front_ends.resampling import Pixels


def resized_by_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """Returns pixels at another size; those on a GPU, or with a torch before 2.12, as `Pixels.resized` makes them.

    The filter rounds some bytes otherwise than PIL's, which front ends use otherwise.

    Args:
        pixels: An image, or several of one size.
        height: Pixels of the result.
        width: Likewise.
    """
    if pixels.size == (height, width):
        return pixels
    tensor = pixels.tensor
    if not tensor.is_cuda:
        from torch.nn.functional import interpolate

        batch = tensor.reshape(-1, *tensor.shape[-3:]).contiguous()
        try:
            made = interpolate(batch, size=(height, width), mode="lanczos", antialias=True, align_corners=False)
            return Pixels(tensor=made.reshape(*tensor.shape[:-2], height, width))
        except (NotImplementedError, ValueError):
            pass
    return pixels.resized(height, width, "lanczos", "torch")
