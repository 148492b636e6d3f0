"""Adding to a finished store, replacing scenes of it, taking some out: what stays is linked, not made again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geoseg.data.alike import Alike
from geoseg.data.building import Build, Kept, build_store, existing_store
from geoseg.data.placing import recover
from geoseg.data.records import Record, fingerprint, options_mark, read_record, scene_mark
from geoseg.data.sampling import SampleOptions
from geoseg.data.store import SCHEMA_VERSION, Store, open_store
from geoseg.data.survey import Survey
from geoseg.errors import DataError, problem


@dataclass(frozen=True)
class Update:
    """What is to be done to come to the store that is wanted.

    Attributes:
        done: The store, if it is there already.
        kept: Scenes that stay as they are; None: there is nothing to keep.
        news: One line about what happens to the store that is there, or "".
    """

    done: Store | None = None
    kept: Kept | None = None
    news: str = ""


def like_the_store(final: Path, options: SampleOptions, overwrite: bool = False) -> SampleOptions:
    """Return options by which scenes are compared with those of the store that they may be added to.

    Args:
        final: The store's folder.
        options: How scenes are to be cut.
        overwrite: The store is to be replaced, so that its scenes need not be like the new ones.
    """
    if overwrite or not (final / "store.json").is_file():
        return options
    try:
        store = _editable(final, options, overwrite=False, append=False)
    except DataError:  # `plan_update` says what is wrong
        return options
    if store is None:
        return options
    info = store.info
    alike = Alike(len(info.bands), info.dtype, tuple(info.band_names))
    return replace(options, survey=replace(options.survey, store=alike))


def plan_update(
    final: Path,
    found: Survey,
    options: SampleOptions,
    overwrite: bool = False,
    append: bool = False,
    again: Collection[str] = (),
) -> Update:
    """Return how the store under `final` becomes the one that is wanted.

    A store made with the same options keeps every scene that has not changed. Scenes that are new in the list are
    added without being asked; scenes that have changed are made again, and scenes that the list no longer holds stay or
    go, only when asked for.

    Args:
        final: The store's folder.
        found: The scenes of the list.
        options: How to cut them.
        overwrite: Replace the store: scenes that the list does not hold go.
        append: Add to the store: scenes that the list does not hold stay, scenes that have changed are made again.
        again: Ids of scenes to make again in any case.

    Raises:
        DataError: Another store is there, and it was not said what shall become of it.
    """
    store = _editable(final, options, overwrite, append)
    if store is None:
        return Update(done=None if again else existing_store(final, fingerprint(found, options), overwrite))
    records = {str(scene["id"]): read_record(store.folder, str(scene["id"])) for scene in store.info.scenes}
    listed = {facts.scene.scene_id: scene_mark(facts) for facts in found.facts}
    same = [scene for scene in records if listed.get(scene) == records[scene]["mark"] and scene not in again]
    changed = [scene for scene in records if scene in listed and scene not in same]
    gone = [scene for scene in records if scene not in listed]
    new = [scene for scene in listed if scene not in records]
    if not changed and not new and (append or not gone):
        return Update(done=store)
    if (changed or gone) and not (overwrite or append):
        raise DataError(_undecided(final, [s for s in changed if s not in again], gone, bool(again)))
    stay = [*same, *gone] if append else same
    kept = {scene: records[scene] for scene in records if scene in stay}
    news = f"{len(kept)} scenes stay, {len(new)} are added, {len(changed)} made again, {0 if append else len(gone)} go"
    order = (*records, *new) if append else tuple(listed)
    return Update(kept=Kept(store.folder, kept, order) if kept else None, news=news)


def _editable(final: Path, options: SampleOptions, overwrite: bool, append: bool) -> Store | None:
    """Return the store that is there if it was made with these options; None to begin anew."""
    recover(final)
    if not (final / "store.json").is_file():
        return None
    try:
        store = open_store(final)
    except DataError:
        if overwrite:
            return None
        raise
    same = store.info.provenance.get("options_mark") == options_mark(options)
    if store.info.schema_version == SCHEMA_VERSION and same:
        return store
    if append:
        found = "a store of an older schema" if same or store.info.schema_version < SCHEMA_VERSION else "other settings"
        remedy = "sample all scenes again with --overwrite, or choose another global.data_path"
        raise DataError(problem(final, found, "a store made with the same settings, to add to", remedy))
    return None


def _undecided(final: Path, changed: Sequence[str], gone: Sequence[str], replacing: bool) -> str:
    parts = []
    if changed:
        parts.append(f"{len(changed)} scenes whose files have changed since ({', '.join(changed[:3])})")
    if gone:
        parts.append(f"{len(gone)} scenes that are not in the list ({', '.join(gone[:3])})")
    remedy = "--append keeps what is not listed and makes again what has changed; --overwrite keeps only what is listed"
    found = f"a sample store with {' and '.join(parts)}" if parts else "a sample store, and scenes to replace"
    return problem(final, found, "the scenes of the list" if not replacing else "--append beside --replace", remedy)


def remove_scenes(final: Path, names: Sequence[str], options: SampleOptions, how: Build) -> Store:
    """Take scenes out of a store; the files they were made from are not needed.

    Args:
        final: The store's folder.
        names: Scene ids, image paths, or file names without suffix.
        options: Those that the store was made with.
        how: Who is told.

    Raises:
        DataError: A name fits no scene or several, or no training sample would be left.
    """
    store = _editable(final, options, overwrite=False, append=True)
    if store is None:
        raise DataError(problem(final, "no sample store", "one, to remove scenes from", "check global.data_path"))
    records = {str(scene["id"]): read_record(store.folder, str(scene["id"])) for scene in store.info.scenes}
    going = {find_scene(final, records, name) for name in names}
    kept = {scene: record for scene, record in records.items() if scene not in going}
    if not kept:
        remedy = "delete the folder instead"
        raise DataError(problem(final, "no scene that would stay", "at least one", remedy))
    result = build_store(Survey((), ()), options, final, how, Kept(store.folder, kept, tuple(kept)))
    assert result is not None
    return result


def find_scene(final: Path, records: dict[str, Record] | dict[str, dict[str, object]], name: str) -> str:
    """Return the id of the scene that a name stands for.

    Raises:
        DataError: It stands for none, or for several.
    """
    fits = [
        scene
        for scene, record in records.items()
        if name in (scene, record["image"], Path(str(record["image"])).name, Path(str(record["image"])).stem)
    ]
    if len(fits) == 1:
        return fits[0]
    found = f"scenes {', '.join(fits)} for {name!r}" if fits else f"no scene {name!r}"
    remedy = f"name one by its id: {', '.join(list(records)[:5])}"
    raise DataError(problem(final, found, "one scene", remedy))
