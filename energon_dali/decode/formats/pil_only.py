"""Formats that PIL alone reads, by its own header readers; and formats that PIL recognises and that are refused.

The suffixes are webdataset's with these changes: avifs and qoi are added (mpo and avif as well); mpg and mpeg are
video; bufr, grib, h5 and hdf stay bytes, because PIL cannot decode them.
"""

from __future__ import annotations

from energon_dali.decode.formats.image_format import ImageFormat

FORMATS = (
    # GIF fills what no frame covers, and AVIF spends next to nothing on a plain area: neither bounds pixels per byte.
    ImageFormat("gif", ("GIF",), ("gif",), rb"GIF8[79]a"),
    ImageFormat("avif", ("AVIF",), ("avif", "avifs"), rb"....ftypavi[fs]"),
    ImageFormat("blp", ("BLP",), ("blp",)),
    ImageFormat("cur", ("CUR",), ("cur",)),
    ImageFormat("dcx", ("DCX",), ("dcx",)),
    ImageFormat("dds", ("DDS",), ("dds",)),
    ImageFormat("fits", ("FITS",), ("fit", "fits")),
    ImageFormat("fli", ("FLI",), ("flc", "fli")),
    ImageFormat("ftex", ("FTEX",), ("ftc", "ftu")),
    ImageFormat("gbr", ("GBR",), ("gbr",)),
    ImageFormat("icns", ("ICNS",), ("icns",)),
    ImageFormat("ico", ("ICO",), ("ico",)),
    ImageFormat("im", ("IM",), ("im",)),
    ImageFormat("iptc", ("IPTC",), ("iim",)),
    ImageFormat("msp", ("MSP",), ("msp",)),
    ImageFormat("pcd", ("PCD",), ("pcd",)),
    ImageFormat("pcx", ("PCX",), ("pcx",)),
    ImageFormat("pixar", ("PIXAR",), ("pxr",)),
    ImageFormat("psd", ("PSD",), ("psd",)),
    ImageFormat("qoi", ("QOI",), ("qoi",)),
    ImageFormat("sgi", ("SGI",), ("bw", "rgb", "rgba", "sgi")),
    ImageFormat("sun", ("SUN",), ("ras",)),
    ImageFormat("tga", ("TGA",), ("icb", "tga", "vda", "vst")),
    ImageFormat("xbm", ("XBM",), ("xbm",)),
    ImageFormat("xpm", ("XPM",), ("xpm",)),
    # PIL starts Ghostscript for EPS: it would run a program that a dataset contains.
    ImageFormat("eps", ("EPS",), ("eps", "ps"), refused=True),
    # PIL can identify these and not decode them.
    ImageFormat("wmf", ("WMF",), ("emf", "wmf"), refused=True),
    ImageFormat("bufr", ("BUFR",), refused=True),
    ImageFormat("grib", ("GRIB",), refused=True),
    ImageFormat("hdf5", ("HDF5",), refused=True),
    ImageFormat("mpeg", ("MPEG",), refused=True),
    # Not in PIL; known by name so that messages can say what the file is.
    ImageFormat("heic", signature=rb"....ftyp(?:hei|hev|mif)"),
)
