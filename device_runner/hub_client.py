"""Qualcomm AI Hub through its own package (qai-hub 0.56): the user's token, its phones, its QAIRT versions, its errors.

Read from the package's source: the configuration is ~/.qai_hub/client.ini or the file that QAIHUB_CLIENT_INI names;
the package prints to stdout, boxes its messages, and has three families of exceptions. All of that ends here. The
package is imported when it is needed, for it brings botocore and h5py.
"""

from __future__ import annotations

import configparser
import contextlib
import difflib
import io
import logging
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.errors import DeviceChoiceError
from device_runner.graph_errors import HubError, HubTokenError
from export.bundle.compatibility import parse_version
from export.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from device_runner.phone_graphs import PhoneGraph

_LOG = logging.getLogger(__name__)

_SHOWN_DEVICES = 5
_FRAMEWORK = "QAIRT"
_REFUSED_TOKEN = "Failed to authenticate"
_BOX = re.compile(r"[┌┐└┘─|\s]+")
_ARCH, _SOC = "hexagon:", "soc-model:"


@dataclass(frozen=True)
class HubDevice:
    """A hosted phone: its name, its Android, and what the service says of it (`hexagon:v81`, `soc-model:87`, ...)."""

    name: str
    os: str
    attributes: tuple[str, ...]

    def told(self, prefix: str) -> str | None:
        """The value of an attribute, None where the service does not give it."""
        return next((one.removeprefix(prefix) for one in self.attributes if one.startswith(prefix)), None)


def connect() -> Any:
    """A client with the user's token, silent; nothing is sent yet.

    Raises:
        HubTokenError: no configuration, or none with a token.
    """
    from qai_hub import api_utils
    from qai_hub.client import Client
    from qai_hub.public_rest_api import APIException

    path = Path(api_utils.get_config_path())
    try:
        config = api_utils.load_api_config_from_file(str(path))
    except FileNotFoundError as error:
        raise HubTokenError(f"there is no token of Qualcomm AI Hub: {path} is absent; {_how_to_configure()}") from error
    except (APIException, configparser.Error, OSError, ValueError) as error:
        raise HubTokenError(f"{path} is no configuration of qai-hub; {_how_to_configure()}") from error
    if not config.api_token.strip():
        raise HubTokenError(f"{path} holds no token of Qualcomm AI Hub; {_how_to_configure()}")
    config.verbose = False
    return Client(config=config)


def find_device(client: Any, name: str) -> HubDevice:
    """The hosted phone of that name, with its latest Android where there are several.

    Raises:
        DeviceChoiceError: the service lists no such phone; the message names those that are alike.
        HubTokenError, HubError: see `service_errors`.
    """
    with service_errors("asking AI Hub for its phones"):
        listed = client.get_devices()
    matching = [one for one in listed if one.name == name]
    if not matching:
        raise DeviceChoiceError(_no_such_device(name, sorted({one.name for one in listed})))
    chosen = max(matching, key=lambda one: _os_key(one.os))
    attributes = chosen.attributes if isinstance(chosen.attributes, list) else [chosen.attributes]
    return HubDevice(chosen.name, chosen.os, tuple(attributes))


def require_fit(graph: PhoneGraph, device: HubDevice) -> None:
    """Raise BundleError where the phone's chip is told and is not the one that the graph was compiled for.

    Attributes that the service does not give are not checked: the job itself fails then.
    """
    for prefix, wanted in ((_ARCH, graph.target.htp_arch), (_SOC, str(graph.target.soc_model))):
        told = device.told(prefix)
        if told is not None and told != wanted:
            raise BundleError(
                f"{graph.label} of {graph.bundle.folder} is compiled for {graph.target.target} ({prefix}{wanted}), but "
                f"{device.name} has {prefix}{told}: export with the --target of that phone's chip"
            )


def qairt_version(client: Any, graphs: Sequence[PhoneGraph]) -> tuple[str, str]:
    """The oldest QAIRT of the service that reads all binaries: the name for its option, and the full version.

    Without the option a job takes the service's default, which may be older than the compiler and then refuses the
    binary. Raises HubError where even the newest is older.
    """
    needed = max((graph.target.qnn_version or "" for graph in graphs), key=parse_version)
    with service_errors("asking AI Hub for its QAIRT versions"):
        frameworks = [one for one in client.get_frameworks() if one.name.upper() == _FRAMEWORK]
    known = sorted((parse_version(one.full_version), one.api_version, one.full_version) for one in frameworks)
    for version, api_version, full_version in known:
        if version >= parse_version(needed):
            return api_version, full_version
    newest = known[-1][2] if known else "none"
    raise HubError(
        f"the bundles were compiled by QNN {needed}; the newest QAIRT of AI Hub is {newest}, and an older one does not "
        "read their binaries: export with an older onnxruntime-qnn, or wait until AI Hub has it"
    )


@contextlib.contextmanager
def service_errors(doing: str) -> Iterator[None]:
    """Turn what the package raises into HubError or HubTokenError, and keep what it prints out of stdout."""
    import requests
    from qai_hub.client import Error
    from qai_hub.public_rest_api import APIException

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield
    # "Failed to create ..." of the package's request layer is a bare ValueError
    except (Error, APIException, requests.RequestException, ValueError) as error:
        text = _plain(str(error))
        if _REFUSED_TOKEN in text:
            raise HubTokenError(f"AI Hub does not take the token; {_how_to_configure()}") from error
        raise HubError(f"{doing} failed: {text}") from error
    finally:
        if said.getvalue().strip():
            _LOG.info("qai-hub said: %s", _plain(said.getvalue()))


@contextlib.contextmanager
def own_temporary_files() -> Iterator[None]:
    """Let the package's temporary files lie in a folder that goes away: after a failure it leaves them behind."""
    kept = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="hyco-hub-") as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = kept


def _how_to_configure() -> str:
    from qai_hub.public_rest_api import DEFAULT_HUB_WEB_URL

    return f"take yours from {DEFAULT_HUB_WEB_URL}/account/ and run `qai-hub configure --api_token TOKEN`"


def _no_such_device(name: str, names: list[str]) -> str:
    lower = {one.lower(): one for one in names}
    alike = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, _SHOWN_DEVICES, 0.5)]
    alike += [one for one in names if name.lower() in one.lower() and one not in alike][:_SHOWN_DEVICES]
    shown = ", ".join(repr(one) for one in alike) or "none; `qai-hub list-devices` shows all"
    return f"AI Hub lists no phone {name!r} among its {len(names)} devices; names like it: {shown}"


def _os_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _plain(text: str) -> str:
    """The package draws boxes around its messages, with the words broken into lines."""
    return _BOX.sub(" ", text).strip()
