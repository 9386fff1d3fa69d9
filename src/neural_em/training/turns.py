"""Several runs in one process, one step of each in turn; on a GPU each on a stream of its own, so that they overlap."""

from collections.abc import Generator, Mapping

import torch

from neural_em.errors import NeuralEMError
from neural_em.training import distributed
from neural_em.training.state import Outcome

Steps = Generator[None, None, Outcome]


def take_turns(runs: Mapping[str, Steps], device: torch.device) -> dict[str, Outcome | NeuralEMError]:
    """Trains all runs to their ends, one step of each in turn; one that fails does not hold up the others."""
    results: dict[str, Outcome | NeuralEMError] = {}
    streams = {name: _stream(device, len(runs)) for name in runs}
    waiting = dict(runs)
    while waiting:
        for name, run in list(waiting.items()):
            try:
                with torch.cuda.stream(streams[name]), distributed.peers_watched():
                    next(run)
                continue
            except StopIteration as end:
                results[name] = end.value
            except NeuralEMError as error:
                if distributed.world_size() > 1:  # the processes could no longer keep in step
                    raise
                results[name] = error
            except OSError as error:
                where = ": ".join(str(part) for part in (name, error.filename) if part) or "run"
                results[name] = NeuralEMError(f"{where}: {error.strerror or error}")
            del waiting[name]
    return {name: results[name] for name in runs}


def outcomes(results: Mapping[str, Outcome | NeuralEMError]) -> list[Outcome]:
    """The outcomes, if all runs have one; the errors in one line if not."""
    errors = [result for result in results.values() if isinstance(result, NeuralEMError)]
    if len(errors) == 1 and len(results) == 1:
        raise errors[0]
    if errors:
        text = "; ".join(str(error) for error in errors)
        raise NeuralEMError(f"{len(errors)} of {len(results)} runs failed, the others finished: {text}")
    return [result for result in results.values() if isinstance(result, Outcome)]


def _stream(device: torch.device, count: int) -> torch.cuda.Stream | None:
    if device.type != "cuda" or count == 1:
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # the data were made there
    return stream
