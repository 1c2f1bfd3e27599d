"""A Metal library: a source, its kernels, and what was built of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from . import lines
from .build import Built, build
from .cache import cached, content_key
from .compiler import ENTRIES, Mode, preprocess
from .errors import SourceError
from .kernel import Kernel
from .signature import Parameter, Signature
from .spaces import check_address_spaces
from .tokens import Source
from .translate import Constant, Constants, Translation, translate


@dataclass(frozen=True)
class Library:
    """A Metal source with explicit instantiations behind it, as ``newLibrary`` takes it.

    Make one with :meth:`from_source` or :meth:`from_file`. Nothing is compiled before a kernel
    runs; what is compiled is kept by content, across processes and sessions.
    """

    text: str
    name: str
    folders: tuple[Path, ...]
    defines: tuple[tuple[str, str], ...]

    @classmethod
    def from_source(
        cls,
        text: str,
        *,
        instantiate: Iterable[str] = (),
        name: str = "source.metal",
        folders: Iterable[Path] = (),
        defines: Mapping[str, str] | None = None,
    ) -> Library:
        """A library of MSL text.

        ``instantiate``: lines of MSL behind it, such as
        ``template [[host_name("mv4")]] [[kernel]] decltype(mv<half, 4>) mv<half, 4>;``;
        ``name``: the file that messages name; ``folders``: where its includes lie.
        """
        lines = "".join(f"{line}\n" for line in instantiate)
        behind = f'#line 1 "{name} (instantiations)"\n{lines}' if lines else ""
        pairs = tuple(sorted((defines or {}).items()))
        return cls(f"{text}\n{behind}", name, tuple(folders), pairs)

    @classmethod
    def from_file(
        cls,
        path: Path,
        *,
        instantiate: Iterable[str] = (),
        folders: Iterable[Path] = (),
        defines: Mapping[str, str] | None = None,
    ) -> Library:
        """The same for a file; its own folder serves its includes."""
        return cls.from_source(
            path.read_text(),
            instantiate=instantiate,
            name=str(path),
            folders=(path.parent, *folders),
            defines=defines,
        )

    def kernel(self, name: str, *, constants: Constants | None = None) -> Kernel:
        """The kernel of this host name, with values for its function constants.

        Raises SourceError if there is none of that name or the source cannot be read.
        """
        fixed = tuple(sorted((constants or {}).items()))
        signature = self._translation(fixed).signatures.get(name)
        if signature is None:
            names = ", ".join(sorted(self._translation(fixed).signatures))
            raise SourceError(f"{self.name} has no kernel {name}, but {names}")
        return Kernel(name, signature, functools.partial(self._build, fixed))

    @property
    def kernel_names(self) -> list[str]:
        """Host names of all kernels and instantiations."""
        return sorted(self._translation(()).signatures)

    def address_space_errors(self, constants: Constants | None = None) -> list[str]:
        """What Apple's compiler would refuse for its address spaces or types, a line each."""
        return check_address_spaces(self._preprocessed, constants or {})

    @functools.cached_property
    def _preprocessed(self) -> str:
        return preprocess(self.text, self.name, self.folders, dict(self.defines))

    def _translation(self, constants: tuple[tuple[str, Constant], ...]) -> _Cached:
        return _cached_translation(self._preprocessed, constants)

    def _build(self, constants: tuple[tuple[str, Constant], ...], mode: Mode) -> Built:
        translation = self._translation(constants)
        return build(translation.text, mode, translation.statements)


@dataclass(frozen=True)
class _Cached:
    """A translation with its entry points, as it is kept on disk."""

    text: str
    signatures: dict[str, Signature]
    statements: str  # of the sources whose coverage is measured, as JSON


@functools.lru_cache(maxsize=64)
def _cached_translation(preprocessed: str, constants: tuple[tuple[str, Constant], ...]) -> _Cached:
    def make(to: Path) -> None:
        done = translate(preprocessed, dict(constants), check=False)
        entries = f'#line 1 "{ENTRIES}"\n{_entries(done)}'
        text = f'#include "metal_runner.h"\n{done.text}\n{entries}'
        signatures = {name: asdict(done.signature(name)) for name in done.instances}
        ours = str(lines.METAL) in preprocessed
        covered = lines.statements(Source(preprocessed), str(lines.METAL)) if ours else {}
        made = {"text": text, "signatures": signatures, "statements": json.dumps(covered)}
        to.write_text(json.dumps(made))

    key = content_key("translation", preprocessed, repr(constants))
    read = json.loads(cached(f"{key}.json", make).read_text())
    signatures = {
        name: Signature(s["name"], tuple(Parameter(**p) for p in s["parameters"]))
        for name, s in read["signatures"].items()
    }
    return _Cached(read["text"], signatures, read["statements"])


def _entries(translation: Translation) -> str:
    """A function of one type for every kernel, and the table of their names."""
    functions, rows = [], []
    for i, (name, expression) in enumerate(translation.instances.items()):
        arguments = ", ".join(p.argument() for p in translation.signature(name).parameters)
        functions.append(
            f"static void runner_entry_{i}(const runner::ThreadPosition* c, void* const* b,"
            f" void* const* t) {{ {expression}({arguments}); }}\n"
        )
        rows.append(f'{{"{name}", &runner_entry_{i}}},')
    return (
        f'{"".join(functions)}extern "C" {{ extern const int runner_kernel_count = {len(rows)};'
        f" extern const runner::Kernel runner_kernels[] = {{ {''.join(rows)} }}; }}\n"
    )
