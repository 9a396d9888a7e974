"""How a picture is prepared: the checkpoint's own settings, what a run changes of them, and whether both agree.

Knows the fields of the library's image processors. A checkpoint was trained with one crop, size, mean and
interpolation; another one costs accuracy that no pruning takes, so whatever differs is found, named and kept with
the run.
"""

from collections.abc import Mapping
from typing import Any

SETTINGS = (
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "do_convert_rgb", "do_pad", "pad_size", "do_image_splitting", "max_image_size",
    "min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size",
)  # fmt: skip
RENAMED = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}  # how newer libraries write them, inside size


def with_settings(image_processor: Any, settings: Mapping[str, Any] | None) -> Any:
    """The image processor with these settings in the place of the checkpoint's; raises for one that is unknown."""
    if not settings:
        return image_processor
    there = image_processor.to_dict()
    settings = dict(settings)
    for name in [name for name in RENAMED if name in settings and there.get(name) is None]:
        settings["size"] = {**(settings.get("size") or there.get("size") or {}), RENAMED[name]: settings.pop(name)}
    valid = [name for name in SETTINGS if name in there]
    unknown = [name for name in settings if name not in valid]
    if unknown:
        raise ValueError(f"model.image_processor: unknown settings {unknown}, valid are {', '.join(valid)}")
    return type(image_processor).from_dict({**there, **{name: plain(value) for name, value in settings.items()}})


def differing(image_processor: Any, own: Any, written: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Setting → [the checkpoint's, the one in use] where they are not the same.

    written: the checkpoint's own file.  own: the image processor that was made of it, which knows what the file leaves
    to the library."""
    used, made = image_processor.to_dict(), own.to_dict()
    found = {}
    for name in SETTINGS:
        if written.get(name) is None:
            before, now = normal(name, made.get(name)), normal(name, used.get(name))
        else:
            before, now = normal(name, written[name]), normal(name, in_use(used, name))
        if before != now:
            found[name] = [before, now]
    return found


def in_use(used: Mapping[str, Any], name: str) -> Any:
    if used.get(name) is None and name in RENAMED:
        return (used.get("size") or {}).get(RENAMED[name])
    return used.get(name)


def normal(name: str, value: Any) -> Any:
    """One spelling: a lone number for a size is the shorter side, for a crop both; floats to six digits."""
    value = plain(value)
    if name == "size" and isinstance(value, int):
        return {"shortest_edge": value}
    if name in ("crop_size", "pad_size") and isinstance(value, int):
        return {"height": value, "width": value}
    if isinstance(value, Mapping):
        return {key: inner for key, inner in sorted(value.items()) if inner is not None}
    if isinstance(value, list):
        return [round(float(one), 6) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """JSON's types: the library's own size and enum types become dicts and numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)  # of an enum
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return {key: plain(inner) for key, inner in vars(value).items() if inner is not None}
